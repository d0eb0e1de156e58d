"""`anchorfold search`: find pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anchorfold.cli.app import app, err
from anchorfold.cli.options import (
    AllowPickle,
    Device,
    DocumentFilter,
    IndexLocation,
    ModelOverride,
    TrustRemoteCode,
)
from anchorfold.cli.printing import format_score, mode_scores, print_table
from anchorfold.errors import AnchorFoldError, os_reason

if TYPE_CHECKING:
    from anchorfold.storage.hits import Hit

Mode = Literal["visual", "text", "hybrid"]


@app.command("search", rich_help_panel="Start")
def search_command(
    index: IndexLocation,
    queries: Annotated[list[str] | None, typer.Argument(help="One or more queries.", show_default=False)] = None,
    queries_file: Annotated[str | None, typer.Option("--queries", help="File with one query per line; - reads stdin.")] = None,  # noqa: E501
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Maximum results per query.")] = 10,
    mode: Annotated[Mode | None, typer.Option(help="visual (page images), text (BM25) or hybrid (both). Default: hybrid, or visual without stored text.")] = None,  # noqa: E501
    document: DocumentFilter = None,
    where: Annotated[str | None, typer.Option("--where", "-w", help="SQL filter on metadata columns (`anchorfold info` lists them).")] = None,  # noqa: E501
    exact: Annotated[bool, typer.Option("--exact", help="Score all pages instead of candidates.")] = False,
    candidates: Annotated[int | None, typer.Option(min=1, help="Pages scored per query in large indexes. Default: 4,000.")] = None,  # noqa: E501
    per_document: Annotated[bool, typer.Option("--per-document", help="Only the best page of each document.")] = False,
    model: ModelOverride = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per query and line.")] = False,
) -> None:  # fmt: skip
    """Find the pages that match a query.

    \b
    Examples
      anchorfold search my.index "net revenue by region"
      anchorfold search my.index "staff costs" -k 3 --document 'reports/2024/*'
      anchorfold search my.index '"invoice 88214"' --mode text
      anchorfold search my.index "staff costs" --where "year >= 2024 and department = 'sales'"
      anchorfold search my.index --queries queries.txt --json > results.jsonl
    """
    texts = [*(queries or []), *(read_queries(queries_file) if queries_file else [])]
    if not texts:
        raise AnchorFoldError("no query: pass one in quotes, or --queries FILE.")
    from anchorfold.indexes.index import Index

    opened = Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    results = opened.search(
        texts, top_k, mode=mode, documents=document or None, where=where, exact=exact, candidates=candidates,
        per_document=per_document,
    )  # fmt: skip
    for text, hits in zip(texts, results, strict=True):
        if as_json:
            print(json.dumps({"query": text, "results": [hit_as_json(h) for h in hits]}, ensure_ascii=False))
        elif hits:
            print_hits(hits, title=text if len(texts) > 1 else None)
        else:
            err.print(f"No results for {text!r}: {opened.no_result_reason(text, mode, where)}.", markup=False)
    if not any(results):
        raise typer.Exit(1)


@app.command("similar", rich_help_panel="Start")
def similar_command(
    index: IndexLocation,
    document: Annotated[str, typer.Argument(help="Document name, path or pattern.", show_default=False)],
    page: Annotated[int, typer.Argument(min=1, help="Page number, from 1.", show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Maximum results.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the pages that are similar to a page of the index.

    \b
    Example
      anchorfold similar my.index reports/annual.pdf 2
    """
    from anchorfold.indexes.index import Index

    hits = Index.open(index).similar(document, page, top_k)
    if as_json:
        print(json.dumps([hit_as_json(hit) for hit in hits], ensure_ascii=False))
    elif hits:
        print_hits(hits)
    else:
        err.print("No results: the index has no other page.")
    if not hits:
        raise typer.Exit(1)


def read_queries(name: str) -> list[str]:
    """Return the non-empty lines of a file, or of stdin."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise AnchorFoldError(f"cannot read {name}: it is not UTF-8 text.") from error
    except OSError as error:
        raise AnchorFoldError(f"cannot read {name}: {os_reason(error)}.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def hit_as_json(hit: Hit) -> dict[str, object]:
    """Return a hit as JSON; text and hybrid hits include the score of each mode and a snippet."""
    from anchorfold.filters.values import as_json

    result: dict[str, object] = {
        "document": hit.document,
        "page": hit.page,
        "score": round(hit.score, 6),
        "metadata": {name: as_json(value) for name, value in hit.metadata.items()},
    }
    if hit.text is not None:
        scores = {"visual": hit.visual, "text": hit.text}
        result |= {name: None if score is None else round(score, 6) for name, score in scores.items()}
        result |= {"snippet": hit.snippet, "matches": hit.matches}
    return result


def print_hits(hits: list[Hit], title: str | None = None) -> None:
    """Print hits as a table."""
    rows: list[tuple[object, ...]] = [(i, format_score(h.score), h.document, h.page) for i, h in enumerate(hits, 1)]
    columns = [">", ">score", "document", ">page"]
    if any(h.text is not None for h in hits):
        rows = [(*row, *mode_scores(h), h.snippet) for row, h in zip(rows, hits, strict=True)]
        columns += [">visual", ">text", "snippet"]
    print_table(columns, rows, title)
