"""`anchorfold demo`: index and search sample documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, note, out, quiet_libraries
from anchorfold.cli.printing import format_size, mode_scores, print_table, progress_display, stop_on_interrupt

if TYPE_CHECKING:
    from anchorfold.indexes.index import Index

MAX_QUERIES = 6  # taken from a user's file


@app.command("demo", rich_help_panel="Start")
def demo_command(
    file: Annotated[Path | None, typer.Argument(help="PDF or image to index. Default: sample documents.")] = None,
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="Query; may be repeated.")] = None,
    ratio: Annotated[float, typer.Option(help="Fraction of vectors to keep per page, in (0, 1].")] = 0.2,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the sample documents and the index.")] = Path("anchorfold-demo"),  # noqa: E501
    model: Annotated[str | None, typer.Option(help="Model name or path. Default: nano.")] = None,
) -> None:  # fmt: skip
    """Index and search sample documents, or a file of your own.

    \b
    Examples
      anchorfold demo
      anchorfold demo FILE.pdf --query "when is the next payment due?"
    """
    from anchorfold.compressors import AnchorFold
    from anchorfold.demo.content import HYBRID_QUERIES, QUERIES
    from anchorfold.indexes.index import Index

    expected: dict[str, tuple[str, int]] = {}
    if file is None:
        from anchorfold.demo.sample_documents import write_corpus

        documents = write_corpus(output / "documents")
        expected = {text: (str(documents / name), page) for text, name, page in QUERIES}
        queries = query or list(expected)
    else:
        from anchorfold.documents.listing import list_documents

        documents = file
        list_documents(file).require_documents()
        queries = query or headings(file)
    path = output / f"{'sample' if file is None else file.stem}-{ratio:g}.index"
    quiet_libraries()
    index = Index.open_or_create(path, model, AnchorFold(ratio=ratio))
    out.print(f"Indexing {documents} with {index.settings.model} ...", markup=False)
    with stop_on_interrupt() as stop, progress_display() as progress:
        report = index.add(documents, progress=progress, stop=stop)
    for name, reason in report.skipped:
        note(f"skipped {name}: {reason}")
    if queries:
        print_results(index, queries, expected)
    else:
        note('no query: pass one with --query "your question".')
    if file is None and not query and index.settings.text:
        print_hybrid_results(index, HYBRID_QUERIES)
    info = index.info()
    out.print(
        f"{info.full_vectors:,} vectors were compressed to {info.vectors:,}: {format_size(info.full_vector_bytes)} to "
        f"{format_size(info.vector_bytes)}, compression ratio {info.vector_compression_ratio:.1f}."
    )
    out.print(f'Next: anchorfold search {path} "your question", or anchorfold serve {path}', markup=False)


def headings(file: Path) -> list[str]:
    """Return queries for a user's PDF: headings of its outline, or the first lines of some pages."""
    import pypdfium2 as pdfium

    if file.suffix.lower() != ".pdf":
        return []
    try:
        with pdfium.PdfDocument(file) as pdf:
            titles = [b.get_title() for b in pdf.get_toc()][: 4 * MAX_QUERIES : 4]
            if len(titles) < 2:
                step = max(1, len(pdf) // MAX_QUERIES)
                pages = (pdf[i].get_textpage().get_text_bounded() for i in range(0, len(pdf), step))
                titles = [next((line for line in p.splitlines() if len(line.split()) > 2), "") for p in pages]
    except pdfium.PdfiumError:
        return []
    queries = [" ".join(t.split())[:80] for t in titles if t and t.strip()][:MAX_QUERIES]
    if queries:
        note("no --query given: using headings of the file as queries.")
    return queries


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
