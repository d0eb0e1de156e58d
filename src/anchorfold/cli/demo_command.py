"""`anchorfold demo`: index and search sample documents."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, note, out, quiet_libraries
from anchorfold.cli.printing import format_size, mode_scores, print_table, progress_display, stop_on_interrupt

if TYPE_CHECKING:
    from anchorfold.indexes.index import Index


@app.command("demo", rich_help_panel="Start")
def demo_command(
    file: Annotated[Path | None, typer.Argument(help="File or folder. Default: sample documents.")] = None,
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="Query; may be repeated.")] = None,
    ratio: Annotated[float, typer.Option(help="Fraction of vectors to keep per page, in (0, 1].")] = 0.2,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the sample documents and the index.")] = Path("anchorfold-demo"),  # noqa: E501
    model: Annotated[str | None, typer.Option(help="Model name or path. Default: nano.")] = None,
) -> None:  # fmt: skip
    """Index and search sample documents, or compare compression ratios on your own.

    A file or folder without --query: a sample of 24 pages is encoded once and compressed at several ratios, which are
    compared with the full index. With --query, all of it is indexed and searched.

    \b
    Examples
      anchorfold demo
      anchorfold demo ./reports
      anchorfold demo FILE.pdf --query "when is the next payment due?"
    """
    from anchorfold.compressors import AnchorFold
    from anchorfold.demo.content import HYBRID_QUERIES, QUERIES
    from anchorfold.indexes.index import Index

    quiet_libraries()
    if file is not None and not query:
        compare_sample(file, model)
        return
    expected: dict[str, tuple[str, int]] = {}
    if file is None:
        from anchorfold.demo.sample_documents import write_corpus

        documents = write_corpus(output / "documents")
        expected = {text: (str(documents / name), page) for text, name, page in QUERIES}
    else:
        from anchorfold.documents.listing import list_documents

        documents = file
        list_documents(file).require_documents()
    queries = query or list(expected)
    path = output / f"{'sample' if file is None else file.resolve().stem}-{ratio:g}.index"
    index = Index.open_or_create(path, model, AnchorFold(ratio=ratio))
    out.print(f"Indexing {documents} with {index.settings.model} ...", markup=False)
    with stop_on_interrupt() as stop, progress_display() as progress:
        report = index.add(documents, progress=progress, stop=stop)
    for name, reason in report.skipped:
        note(f"skipped {name}: {reason}")
    print_results(index, queries, expected)
    if file is None and not query and index.settings.text:
        print_hybrid_results(index, HYBRID_QUERIES)
    info = index.info()
    out.print(
        f"{info.full_vectors:,} vectors were compressed to {info.vectors:,}: {format_size(info.full_vector_bytes)} to "
        f"{format_size(info.vector_bytes)}, compression ratio {info.vector_compression_ratio:.1f}."
    )
    out.print(f'Next: anchorfold search {path} "your question", or anchorfold serve {path}', markup=False)


def compare_sample(path: Path, model: str | None) -> None:
    """Print the size and the agreement of several ratios on a sample of the user's documents."""
    from anchorfold.backbones import DEFAULT_MODEL
    from anchorfold.backbones.loading import load
    from anchorfold.demo.ratio_sample import MAX_PAGES, MIN_OVERLAP, compare_ratios
    from anchorfold.documents.listing import list_documents

    listing = list_documents(path)
    listing.require_documents()
    name = model or DEFAULT_MODEL
    out.print(f"Encoding at most {MAX_PAGES} pages of {path} with {name} ...", markup=False)
    comparison = compare_ratios(listing, load(name))
    for skipped, reason in comparison.skipped:
        note(f"skipped {skipped}: {reason}")
    rows: list[tuple[object, ...]] = []
    for r in comparison.results:
        agreement = ("-", "-") if r.overlap is None or r.first is None else (f"{r.overlap:.0%}", f"{r.first:.0%}")
        label = "full" if r.ratio == 1 else f"{r.ratio:g}"
        rows.append((label, f"{r.vectors:,.0f}", format_size(r.bytes), *agreement))
    print_table(
        ["ratio", ">vectors per page", ">bytes per page", f">top {comparison.top_k} overlap", ">same first page"], rows
    )
    if queries := comparison.queries:
        out.print(
            f"{comparison.pages} pages, {len(queries)} queries from their titles and rare phrases, such as "
            f"{shorten(queries[0], 60)!r}.", markup=False,
        )  # fmt: skip
    else:
        note('the pages have no text to draw queries from. Search them with --query "your question".')
    best = comparison.recommended()
    ratio = best.ratio if best is not None else max(r.ratio for r in comparison.results[1:])
    if best is not None:
        out.print(f"Recommended: ratio {ratio:g}, the smallest with an overlap of at least {MIN_OVERLAP:.0%}.")
    elif queries:
        out.print(f"Recommended: ratio {ratio:g}; no ratio has an overlap of at least {MIN_OVERLAP:.0%}.")
    option = "" if model is None else f" --model {shlex.quote(model)}"
    out.print(f"Next: anchorfold index {shlex.quote(str(path))} -o my.index --ratio {ratio:g}{option}", markup=False)


def print_results(index: Index, queries: Sequence[str], expected: dict[str, tuple[str, int]]) -> None:
    """Print the best page of each query, and whether it is the expected one."""
    rows: list[tuple[object, ...]] = []
    correct = 0
    for query, hits in zip(queries, index.search(queries, top_k=1, mode="visual"), strict=True):
        if not hits:
            rows.append((query, "no results", "", "", ""))
            continue
        best, mark = hits[0], ""
        if query in expected:
            source, page = expected[query]
            is_correct = (best.document, best.page) == (source, page)
            correct += is_correct
            mark = "correct" if is_correct else f"expected {Path(source).name} {page}"
        rows.append((query, Path(best.document).name, best.page, f"{best.score:.3f}", mark))
    print_table(["query", "document", ">page", ">score", ""], rows)
    if count := sum(query in expected for query in queries):
        out.print(f"{correct} of {count} queries return the expected page first, of {index.info().pages} pages.")


def print_hybrid_results(index: Index, queries: Sequence[str]) -> None:
    """Print the best page of each query in hybrid mode, with the score of each mode."""
    out.print("Hybrid search, visual and text (--mode hybrid):")
    rows: list[tuple[object, ...]] = []
    for query, hits in zip(queries, index.search(queries, top_k=1, mode="hybrid"), strict=True):
        for hit in hits:
            snippet = hit.snippet if hit.text else "(scan without text layer)"
            rows.append((query, Path(hit.document).name, hit.page, *mode_scores(hit), snippet))
    print_table(["query", "document", ">page", ">visual", ">text", "snippet"], rows)
