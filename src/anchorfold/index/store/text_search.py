"""Full-text search in one commit: BM25 scores, snippets and matched words."""

from __future__ import annotations

import json
from collections.abc import Sequence

from anchorfold.index.store.filter_sql import TRUE, Condition
from anchorfold.index.store.records import Snippet
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.words import joined

SNIPPET_WORDS = 24
OPENING, CLOSING, GAP = "\x02", "\x03", " … "  # the first two never occur in a page: they are removed when it is read


def best_matches(
    snapshot: Snapshot, expression: str, limit: int, condition: Condition = TRUE
) -> list[tuple[int, float]]:
    """The best pages for an FTS5 expression as (page id, BM25 score), best first.

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
    """BM25 scores of some pages by id; pages that do not match are left out."""
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
    """Passages with the matched words, by page id; pages that do not match are left out."""
    query = "SELECT snippet(text_index, 0, ?, ?, ?, ?) FROM text_index WHERE text_index MATCH ? AND rowid = ?"
    found: dict[int, Snippet] = {}
    for identity in identities:
        snapshot.text(identity)  # verifies its checksum
        parameters = (OPENING, CLOSING, GAP, SNIPPET_WORDS, expression, identity)
        row = snapshot.connection.execute(query, parameters).fetchone()
        if row is not None:
            found[identity] = as_snippet(joined(row[0]))
    return found


def matched_words(snapshot: Snapshot, expression: str, identity: int) -> list[str]:
    """The words of a page that an expression matches, as they occur on the page, once each."""
    query = "SELECT highlight(text_index, 0, ?, ?) FROM text_index WHERE text_index MATCH ? AND rowid = ?"
    row = snapshot.connection.execute(query, (OPENING, CLOSING, expression, identity)).fetchone()
    if row is None:
        return []
    shown = as_snippet(joined(row[0]), one_line=False)
    return list(dict.fromkeys(shown.text[first:last] for first, last in shown.matches))


def as_snippet(marked: str, one_line: bool = True) -> Snippet:
    """A text whose matches are marked, without the marks."""
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
