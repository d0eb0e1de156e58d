"""Words for full-text search: how a page's text is split into them, and what a query asks for."""

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
    """What a query asks of the full-text index, in FTS5's language: any of its words; empty if it has none.

    What hangs together (`wi-fi`, `1,775`, or anything between quotes) counts as a phrase as well as by its words;
    numbers are no words of their own there.

    >>> match_expression('net revenue 1,775 "by region"')
    '"net" OR "revenue" OR "1 775" OR "by region" OR "by" OR "region"'
    >>> match_expression("売上高")
    '"売 上" OR "上 高"'
    """
    terms: dict[str, None] = {}
    for quoted, piece in _PIECES.findall(joined(query)):
        words = [word for chunk in _WORD.findall(quoted or piece) for word in spaced(chunk).split(_ZERO_WIDTH)]
        if len(words) == 1 and not _UNSPACED_RUN.fullmatch(words[0]):
            terms[words[0]] = None
        elif words and not any(map(_UNSPACED_RUN.fullmatch, words)):
            terms[" ".join(words)] = None
            terms.update(dict.fromkeys(word for word in words if not word.isdecimal()))
        elif words:
            terms.update(dict.fromkeys(_unspaced_terms(words)))
    return " OR ".join(f'"{term}"' for term in list(terms)[:MOST_TERMS])


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
