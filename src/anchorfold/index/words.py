"""Words for full-text search: how the text of a page is split, and how a query becomes an FTS5 expression."""

from __future__ import annotations

import re

# Written without spaces between words: every character is a word of its own, and two in a row are asked for together.
_UNSPACED = "\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003134f"
_ZERO_WIDTH = "\u200b"  # parts words for the tokeniser and is not seen
_BEFORE_UNSPACED = re.compile(f"(?<=[^\\W_])(?=[{_UNSPACED}])|(?<=[{_UNSPACED}])(?=[^\\W_])")
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_PIECES = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"[^\W_]+")
_UNWANTED = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\ufeff\ufffe\uffff\ud800-\udfff]")
MOST_TERMS = 64  # of a query
# Articles, prepositions and conjunctions of English, German, French, Spanish and Italian that name nothing.
# Question words are not among them: headings such as "How do I ..." are found by them (docs/guides/text.md).
_STOP_WORDS = """
a an and are as at be by for from in is it its of on or that the these this to was were with
das dem den der des ein eine einer eines im ist mit oder und von zu zum zur
au aux avec dans de et la le les ou pour sur un une
del el en las los por una y
dei della di il nel
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def cleaned(text: str) -> str:
    """A page's text without characters that are none: control characters, marks of byte order, half ones.

    Words that a line break parts with a soft hyphen, as PDFs have them, are put together again.
    """
    text = re.sub("(?:\u00ad|\ufffe|\x02)\\s*\\n?", "", text)  # pdfium gives a soft hyphen as either
    return _UNWANTED.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def spaced(text: str) -> str:
    """A text as it is stored: characters of scripts without spaces are words of their own.

    >>> spaced("年報 2024").replace("\\u200b", "|")
    '年|報 2024'
    """
    return _BEFORE_UNSPACED.sub(_ZERO_WIDTH, text.replace(_ZERO_WIDTH, ""))


def joined(text: str) -> str:
    """The opposite of `spaced`."""
    return text.replace(_ZERO_WIDTH, "")


def match_expression(query: str) -> str:
    """The FTS5 expression of a query: any of its words, and all of its quoted phrases; empty if it has no words.

    Words that are joined (`wi-fi`, `1,775`) count as a phrase as well as by themselves; numbers do not count by
    themselves there. Stop words are left out unless the query has no other word.

    Examples:
        >>> match_expression("net revenue 1,775 of wi-fi")
        '"net" OR "revenue" OR "1 775" OR "wi fi" OR "wi" OR "fi"'
        >>> match_expression('change of "net revenue"')
        '"net revenue" AND ("net revenue" OR "change")'
        >>> match_expression("売上高")
        '"売 上" OR "上 高"'
    """
    terms: dict[str, None] = {}
    phrases: dict[str, None] = {}
    for quoted, piece in _PIECES.findall(joined(query)):
        words = [word for chunk in _WORD.findall(quoted or piece) for word in spaced(chunk).split(_ZERO_WIDTH)]
        if quoted and words:
            phrases[" ".join(words)] = None
        elif len(words) == 1 and not _UNSPACED_RUN.fullmatch(words[0]):
            terms[words[0]] = None
        elif words and not any(map(_UNSPACED_RUN.fullmatch, words)):
            terms[" ".join(words)] = None
            terms.update(dict.fromkeys(word for word in words if not word.isdecimal()))
        elif words:
            terms.update(dict.fromkeys(_unspaced_terms(words)))
    wanted = [term for term in terms if term.lower() not in STOP_WORDS] or list(terms if not phrases else ())
    anywhere = " OR ".join(f'"{term}"' for term in [*phrases, *wanted][:MOST_TERMS])
    mandatory = " AND ".join(f'"{phrase}"' for phrase in list(phrases)[:MOST_TERMS])
    if not phrases or not wanted:
        return mandatory or anywhere
    return f"{mandatory} AND ({anywhere})"


def _unspaced_terms(words: list[str]) -> list[str]:
    """Pairs of neighbours where both are characters of such a script; what stands alone as it is."""
    single = [bool(_UNSPACED_RUN.fullmatch(word)) for word in words]
    terms = []
    for i, word in enumerate(words):
        if single[i] and i + 1 < len(words) and single[i + 1]:
            terms.append(f"{word} {words[i + 1]}")
        elif not (single[i] and i and single[i - 1]):
            terms.append(word)
    return terms
