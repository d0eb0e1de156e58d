"""`anchorfold search`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anchorfold.cli.app import app, err
from anchorfold.cli.options import AllowPickle, Device, ModelPlace, TrustRemoteCode
from anchorfold.cli.printing import table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.index import Hit

Mode = Literal["visual", "text", "hybrid"]


@app.command("search", rich_help_panel="Documents")
def search_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    queries: Annotated[list[str] | None, typer.Argument(help="One query or several.", show_default=False)] = None,
    file: Annotated[str | None, typer.Option("--queries", help="A file with a query a line; - is standard input.")] = None,  # noqa: E501
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Pages to show.")] = 10,
    document: Annotated[list[str] | None, typer.Option("--document", "-d", help="Only these: names, folders or patterns such as '*.pdf'.")] = None,  # noqa: E501
    mode: Annotated[Mode | None, typer.Option(help="By what pages look like, by what they say, or by both. Default: visual.")] = None,  # noqa: E501
    where: Annotated[str | None, typer.Option("--where", "-w", help="Only pages for which this is true: SQL on their columns, which `anchorfold info` lists.")] = None,  # noqa: E501
    exact: Annotated[bool, typer.Option("--exact", help="Score every page, however many.")] = False,
    candidates: Annotated[int | None, typer.Option(min=1, help="Pages that a large index scores. Default: 4,000.")] = None,  # noqa: E501
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per query and line.")] = False,
    model: ModelPlace = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:  # fmt: skip
    """Find the pages that answer a query.

    \b
    Examples
      anchorfold search my.index "net revenue by region"
      anchorfold search my.index "staff costs" --top 3 --document 'reports/2024/*'
      anchorfold search my.index "invoice 88214" --mode hybrid
      anchorfold search my.index "staff costs" --where "year >= 2024 and department = 'sales'"
      anchorfold search my.index --queries questions.txt --json > answers.jsonl
    """
    texts = [*(queries or []), *(read_queries(file) if file else [])]
    if not texts:
        raise AnchorFoldError("no query: give one in quotes, or --queries FILE.")
    from anchorfold.index import Index

    opened = Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    answers = opened.search(
        texts,
        top,
        mode=mode,
        documents=document or None,
        where=where,
        exact=True if exact else None,
        candidates=candidates,
    )
    for text, hits in zip(texts, answers, strict=True):
        if as_json:
            print(json.dumps({"query": text, "results": [as_result(h) for h in hits]}, ensure_ascii=False))
        elif hits:
            show(text, hits, titled=len(texts) > 1)
        else:
            err.print(f"No results for {text!r}: {opened.no_result_reason(text, mode, where)}.", markup=False)
    if not any(answers):
        raise typer.Exit(1)


def read_queries(name: str) -> list[str]:
    """Non-empty lines of a file or of standard input."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise AnchorFoldError(f"{name} is not text in UTF-8.") from error
    except OSError as error:
        raise AnchorFoldError(f"{name} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def as_result(hit: Hit) -> dict[str, object]:
    """A hit as JSON; scores of the sides and the text if there are any."""
    from anchorfold.index.filters.values import as_json

    metadata = {name: as_json(value) for name, value in hit.metadata.items()}
    result: dict[str, object] = {
        "document": hit.document,
        "page": hit.page,
        "score": round(hit.score, 6),
        "metadata": metadata,
    }
    if hit.text is not None:
        sides = {"visual": hit.visual, "text": hit.text}
        result |= {name: None if score is None else round(score, 6) for name, score in sides.items()}
        result |= {"snippet": hit.snippet, "matches": hit.matches}
    return result


def show(text: str, hits: list[Hit], titled: bool) -> None:
    """Print a table of pages."""
    rows: list[tuple[object, ...]] = [(i + 1, f"{h.score:.3f}", h.document, h.page) for i, h in enumerate(hits)]
    columns = [("", "right"), ("score", "right"), ("document", "left"), ("page", "right")]
    if any(h.text is not None for h in hits):
        rows = [(*row, *sides(h), h.snippet) for row, h in zip(rows, hits, strict=True)]
        columns += [("visual", "right"), ("text", "right"), ("words", "left")]
    table(columns, rows, title=text if titled else None)


def sides(hit: Hit) -> tuple[str, str]:
    """The scores of what a page looks like and of what it says; nothing for a side that did not find it."""
    return "" if hit.visual is None else f"{hit.visual:.3f}", f"{hit.text:.2f}" if hit.text else ""
