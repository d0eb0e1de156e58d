"""Full-text search: how texts are split into words, how a query becomes an FTS5 expression, and BM25 in one commit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from anchorfold.storage.filter_sql import TRUE, SqlCondition
from anchorfold.storage.records import Snippet
from anchorfold.storage.schema import ZERO_WIDTH
from anchorfold.storage.snapshot import Snapshot

# Scripts without spaces between words: each character is a word, and two neighbours are searched as a phrase.
_UNSPACED = "\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003134f"
_BEFORE_UNSPACED = re.compile(f"(?<=[^\\W_])(?=[{_UNSPACED}])|(?<=[{_UNSPACED}])(?=[^\\W_])")
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'))  # typographic quotes
_PIECES = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"[^\W_]+")
_UNWANTED = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\ufeff\ufffe\uffff\ud800-\udfff]")
MOST_TERMS = 64  # of a query
SNIPPET_WORDS = 24
OPENING, CLOSING, GAP = "\x02", "\x03", " … "  # the first two never occur in a page: they are removed when it is read
# Articles, prepositions and conjunctions of English, German, French, Spanish and Italian. Question words are not
# included: they match headings such as "How do I ..." (docs/research/results.md).
_STOP_WORDS = """
a an and are as at be by for from in is it its of on or that the these this to was were with
das dem den der des ein eine einer eines im ist mit oder und von zu zum zur
au aux avec dans de et la le les ou pour sur un une
del el en las los por una y
dei della di il nel
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def cleaned(text: str) -> str:
    """Remove control characters, byte order marks and surrogates from the text of a page.

    Words that are hyphenated at a line break with a soft hyphen, as in PDFs, are joined.
    """
    text = re.sub("(?:\u00ad|\ufffe|\x02)\\s*\\n?", "", text)  # pdfium gives a soft hyphen as either
    return _UNWANTED.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def spaced(text: str) -> str:
    """Separate the characters of scripts without spaces, so that the tokenizer treats each as a word.

    Examples:
        >>> spaced("年報 2024").replace("\\u200b", "|")
        '年|報 2024'
    """
    return _BEFORE_UNSPACED.sub(ZERO_WIDTH, text.replace(ZERO_WIDTH, ""))


def joined(text: str) -> str:
    """Return the opposite of `spaced`."""
    return text.replace(ZERO_WIDTH, "")


def match_expression(query: str) -> str:
    """Return the FTS5 expression of a query: any of its words, and all quoted phrases; empty if it has no words.

    Compounds (`wi-fi`, `1,775`) match as a phrase, and by their parts unless these are numbers. Stop words are left out
    unless the query has no other word.

    Examples:
        >>> match_expression("net revenue 1,775 of wi-fi")
        '"net" OR "revenue" OR "1 775" OR "wi fi" OR "wi" OR "fi"'
        >>> match_expression('change of "net revenue"')
        '"net revenue" AND ("net revenue" OR "change")'
        >>> match_expression("売上高")
        '"売 上" OR "上 高"'
    """
    phrases, wanted = query_terms(query)
    anywhere = " OR ".join(f'"{term}"' for term in [*phrases, *wanted][:MOST_TERMS])
    mandatory = " AND ".join(f'"{phrase}"' for phrase in phrases[:MOST_TERMS])
    if not phrases or not wanted:
        return mandatory or anywhere
    return f"{mandatory} AND ({anywhere})"


def has_phrase(query: str) -> bool:
    """Return whether a query contains a quoted phrase."""
    return bool(query_terms(query)[0])


def query_terms(query: str) -> tuple[list[str], list[str]]:
    """Return the quoted phrases of a query and its other terms."""
    terms: dict[str, None] = {}
    phrases: dict[str, None] = {}
    for quoted, piece in _PIECES.findall(joined(query).translate(_QUOTES)):
        words = [word for chunk in _WORD.findall(quoted or piece) for word in spaced(chunk).split(ZERO_WIDTH)]
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
    return list(phrases), wanted


def _unspaced_terms(words: list[str]) -> list[str]:
    """Pairs of neighbouring characters of scripts without spaces, and single words."""
    single = [bool(_UNSPACED_RUN.fullmatch(word)) for word in words]
    terms = []
    for i, word in enumerate(words):
        if single[i] and i + 1 < len(words) and single[i + 1]:
            terms.append(f"{word} {words[i + 1]}")
        elif not (single[i] and i and single[i - 1]):
            terms.append(word)
    return terms


def best_matches(
    snapshot: Snapshot, expression: str, limit: int, condition: SqlCondition = TRUE
) -> list[tuple[int, float]]:
    """Return the best pages for an FTS5 expression as (page id, BM25 score), best first.

    Args:
        snapshot: the commit.
        expression: what `match_expression` gives.
        limit: maximum number of pages.
        condition: SQL on `page_id` and `version_id`.
    """
    query = (
        "SELECT page_id, score FROM (SELECT rowid AS page_id, rowid >> 24 AS version_id, -bm25(text_index) AS score "
        f"FROM text_index WHERE text_index MATCH ?) WHERE {condition.sql} ORDER BY score DESC, page_id LIMIT ?"
    )
    rows = snapshot.connection.execute(query, (expression, *condition.parameters, limit))
    return [(identity, score) for identity, score in rows if score > 0]


def scores_of(snapshot: Snapshot, expression: str, identities: Sequence[int]) -> dict[int, float]:
    """Return BM25 scores of some pages by id; pages that do not match are left out."""
    # The unary plus keeps SQLite from running one full-text query per page.
    query = (
        "SELECT rowid, -bm25(text_index) FROM text_index WHERE text_index MATCH ? "
        "AND +rowid IN (SELECT value FROM json_each(?))"
    )
    return dict(snapshot.connection.execute(query, (expression, json.dumps(list(identities)))))


def with_text(snapshot: Snapshot, identities: Sequence[int]) -> set[int]:
    """Those of some pages that have any text."""
    query = "SELECT page_id FROM texts WHERE page_id IN (SELECT value FROM json_each(?)) AND text != ''"
    return {identity for (identity,) in snapshot.connection.execute(query, (json.dumps(list(identities)),))}


def snippets(snapshot: Snapshot, expression: str, identities: Sequence[int]) -> dict[int, Snippet]:
    """Return passages with the matched words, by page id; pages that do not match are left out."""
    query = "SELECT snippet(text_index, 0, ?, ?, ?, ?) FROM text_index WHERE text_index MATCH ? AND rowid = ?"
    passages: dict[int, Snippet] = {}
    for identity in identities:
        snapshot.text(identity)  # verifies its checksum
        parameters = (OPENING, CLOSING, GAP, SNIPPET_WORDS, expression, identity)
        row = snapshot.connection.execute(query, parameters).fetchone()
        if row is not None:
            passages[identity] = as_snippet(joined(row[0]))
    return passages


def matched_words(snapshot: Snapshot, expression: str, identity: int) -> list[str]:
    """Return the words of a page that an expression matches, as they occur on the page, once each."""
    query = "SELECT highlight(text_index, 0, ?, ?) FROM text_index WHERE text_index MATCH ? AND rowid = ?"
    row = snapshot.connection.execute(query, (OPENING, CLOSING, expression, identity)).fetchone()
    if row is None:
        return []
    shown = as_snippet(joined(row[0]), one_line=False)
    return list(dict.fromkeys(shown.text[first:last] for first, last in shown.matches))


def as_snippet(marked: str, one_line: bool = True) -> Snippet:
    """Return a text whose matches are marked, without the marks."""
    if one_line:
        marked = " ".join(marked.split())
    text, matches, first = "", [], 0
    for character in marked:
        if character == OPENING:
            first = len(text)
        elif character == CLOSING:
            matches.append((first, len(text)))
        else:
            text += character
    return Snippet(text, tuple(matches))
