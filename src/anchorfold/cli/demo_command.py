"""`anchorfold demo`: the whole way on sample documents, or on a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, note, out, quiet_libraries
from anchorfold.cli.index_command import showing, stopping
from anchorfold.cli.printing import size, table
from anchorfold.cli.search_command import sides

if TYPE_CHECKING:
    from anchorfold.index import Index

ASKED = 6


@app.command("demo", rich_help_panel="Start here")
def demo_command(
    file: Annotated[Path | None, typer.Argument(help="Your own PDF or image; sample documents if left out.")] = None,
    ask: Annotated[list[str] | None, typer.Option("--ask", help="A question; may be given several times.")] = None,
    ratio: Annotated[float, typer.Option(help="Vectors to keep of each page.")] = 0.2,
    folder: Annotated[Path, typer.Option(help="Where sample documents and the index go.")] = Path("anchorfold-demo"),
    model: Annotated[str | None, typer.Option(help="A model name or folder.")] = None,
) -> None:  # fmt: skip
    """Index some documents, ask questions, and see how much smaller the index is.

    \b
    Examples
      anchorfold demo
      anchorfold demo FILE.pdf --ask "when is the next payment due?"
    """
    from anchorfold.compressors import AnchorFold
    from anchorfold.index import Index

    expected: dict[str, tuple[str, int]] = {}
    if file is None:
        from anchorfold.demo.content import QUESTIONS
        from anchorfold.demo.corpus import write_corpus

        documents = write_corpus(folder / "documents")
        expected = {q: (str(documents / name), page) for q, name, page in QUESTIONS}
        questions = ask or list(expected)
    else:
        documents = file
        from anchorfold.documents.listing import list_documents

        list_documents(file).require_some()
        questions = ask or headings(file)
    folder_of_index = folder / f"{'sample' if file is None else file.stem}-{ratio:g}.index"
    quiet_libraries()
    index = Index.open_or_create(folder_of_index, model, AnchorFold(ratio=ratio))
    out.print(f"Reading {documents} from its pixels, with {index.settings.model} ...", markup=False)
    with stopping() as stop, showing() as progress:
        report = index.add(documents, progress=progress, stop=stop)
    for name, why in report.skipped:
        note(f"skipped {name}: {why}")
    answer(index, questions, expected)
    if file is None and not ask and index.has_text:
        from anchorfold.demo.content import TOGETHER

        answer_together(index, TOGETHER)
    tell_size(index, folder_of_index)


def headings(file: Path) -> list[str]:
    """Questions to ask of a user's own file: the headings of its outline, or the first lines of some pages."""
    import pypdfium2 as pdfium

    if file.suffix.lower() != ".pdf":
        return []
    try:
        with pdfium.PdfDocument(file) as pdf:
            titles = [b.get_title() for b in pdf.get_toc()][: 4 * ASKED : 4]
            if len(titles) < 2:
                step = max(1, len(pdf) // ASKED)
                pages = (pdf[i].get_textpage().get_text_bounded() for i in range(0, len(pdf), step))
                titles = [next((line for line in p.splitlines() if len(line.split()) > 2), "") for p in pages]
    except pdfium.PdfiumError:
        return []
    questions = [" ".join(t.split())[:80] for t in titles if t and t.strip()][:ASKED]
    if questions:
        note("no --ask given: the questions are this file's own headings.")
    return questions


def answer(index: Index, questions: list[str], expected: dict[str, tuple[str, int]]) -> None:
    """The best page of each question; a tick where it is the one that holds the fact."""
    if not questions:
        note('nothing was asked: try --ask "your question".')
        return
    quiet_libraries()
    rows: list[tuple[object, ...]] = []
    right = 0
    for question, hits in zip(questions, index.search(questions, top=3), strict=True):
        if not hits:
            rows.append((question, "nothing found", "", "", ""))
            continue
        best = hits[0]
        mark = ""
        if question in expected:
            good = (best.document, best.page) == expected[question]
            right, mark = (
                right + good,
                "right" if good else f"wrong: {Path(expected[question][0]).name} {expected[question][1]}",
            )
        rows.append((question, Path(best.document).name, best.page, f"{best.score:.3f}", mark))
    columns = [("question", "left"), ("best page of", "left"), ("page", "right"), ("score", "right"), ("", "left")]
    table(columns, rows)
    if known := sum(q in expected for q in questions):
        out.print(f"{right} of {known} questions find the one right page first, among {index.info().pages} pages.")


def answer_together(index: Index, questions: Sequence[str]) -> None:
    """Questions by looks and words together: what each side says of the best page."""
    out.print("By looks and words together (--mode hybrid):")
    rows: list[tuple[object, ...]] = []
    for question, hits in zip(questions, index.search(questions, top=1, mode="hybrid"), strict=True):
        for hit in hits:
            visual, text = sides(hit)
            why = f"looks and words: {hit.snippet}" if hit.text else "looks alone: the page has no text layer"
            rows.append((question, Path(hit.document).name, hit.page, visual, text, why))
    heads = ("question", "best page of", "page", "visual", "text", "found by")
    table([(head, "right" if head in ("page", "visual", "text") else "left") for head in heads], rows)


def tell_size(index: Index, folder_of_index: Path) -> None:
    """How much smaller, and what to try next."""
    info = index.info()
    out.print(
        f"{info.full_vectors:,} vectors became {info.vectors:,}: {size(info.full_vector_bytes)} of vectors became "
        f"{size(info.vector_bytes)}, {info.vectors_times_smaller:.1f} times smaller than the full index."
    )
    out.print(f'Next: anchorfold search {folder_of_index} "your question"', markup=False)
