"""`anchorfold explain`: heatmaps of query terms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, note, out, quiet_libraries
from anchorfold.cli.options import AllowPickle, Device, ModelOverride, TrustRemoteCode, complete_path
from anchorfold.cli.printing import print_table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.backbones import BackboneEncoder
    from anchorfold.indexes.index import Index

CASE_STUDY = "anchorfold,sap"  # methods of the paper's figure


@app.command("explain", rich_help_panel="Explain")
def explain_command(
    index: Annotated[str | None, typer.Argument(help="Index directory or URL; none with --task.", show_default=False, autocompletion=complete_path)] = None,  # noqa: E501
    query: Annotated[str | None, typer.Argument(help="Query; none with --task.", show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help="Benchmark task instead of an index: compare methods on the page of a query.")] = None,  # noqa: E501
    query_id: Annotated[str | None, typer.Option("--query", help="With --task: identifier of the query.")] = None,
    document: Annotated[str | None, typer.Option("--document", "-d", help="Document name. Default: the best match.")] = None,  # noqa: E501
    page: Annotated[int | None, typer.Option("--page", min=1, help="Page number (requires --document). Default: the best match.")] = None,  # noqa: E501
    output: Annotated[Path, typer.Option("--output", "-o", help="Output image (PNG or JPEG).")] = Path("why.png"),
    compare: Annotated[str, typer.Option(help="Draw a comparison of these comma-separated methods at three ratios.")] = "",  # noqa: E501
    box: Annotated[list[str] | None, typer.Option(help="With --compare: frame of the answer as left,top,right,bottom, fractions of the page.")] = None,  # noqa: E501
    model: ModelOverride = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:  # fmt: skip
    """Render a heatmap of the query terms on a page.

    \b
    Examples
      anchorfold explain my.index "net revenue by region"
      anchorfold explain my.index "net revenue" --document report.pdf --page 12 -o why.png
      anchorfold explain my.index "net revenue" --compare anchorfold,sap -o comparison.png
      anchorfold explain --task Vidore2ESGReportsRetrieval --query english/test/query-1 --model ./my-colqwen
    """
    from anchorfold.backbones import load
    from anchorfold.explanation.heatmap import draw_explanation, explain
    from anchorfold.indexes.index import Index

    if task is not None:
        if index is not None or query_id is None:
            raise AnchorFoldError("--task requires --query and no index.")
        encoder = load(
            model or DEFAULT_MODEL, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
        )
        draw_task_page(encoder, task, query_id, compare or CASE_STUDY, box or [], output)
        out.print(f"wrote {output}", markup=False)
        return
    if index is None or query is None:
        raise AnchorFoldError("give an index and a query, or --task and --query.")
    if page is not None and document is None:
        raise AnchorFoldError("--page requires --document.")
    quiet_libraries()
    opened = Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if document is None or page is None:
        document, page = best_page(opened, query, document)
    if compare:
        draw_comparison(opened, query, document, page, compare, box or [], output)
    else:
        explanation = explain(opened, query, document, page)
        if not explanation.is_original:
            note(f"{explanation.document} was deleted or changed since it was indexed: using its thumbnail.")
        try:
            draw_explanation(explanation).save(output)
        except (OSError, ValueError) as error:  # Pillow raises ValueError for an unknown extension
            raise AnchorFoldError(f"{output} cannot be written: {error}.") from error
        evidence = explanation.evidence
        rows = [(word, f"{score:.3f}") for word, score in zip(evidence.words, evidence.scores.tolist(), strict=True)]
        print_table(["word", ">score"], rows)
        retention = explanation.retention
        suffix = "" if retention is None else f", {retention:.1f} % of the uncompressed score"
        name = f"{explanation.document} page {explanation.page}"
        out.print(f"{name}: visual score {evidence.score:.3f}{suffix}", markup=False)
    out.print(f"wrote {output}", markup=False)


def best_page(index: Index, query: str, document: str | None) -> tuple[str, int]:
    """Return the source and number of the best page for a query, of one document if given."""
    hits = index.search(query, top_k=1, documents=document)
    if not hits:
        raise AnchorFoldError(f"no page matches {query!r}.")
    return hits[0].source, hits[0].page


def draw_comparison(
    index: Index, query: str, document: str, page: int, methods: str, boxes: list[str], output: Path
) -> None:
    """Draw a page under several compression methods."""
    from anchorfold.backbones.encoder import require_comparable
    from anchorfold.evaluation.figures.case_study import draw_case_study, parse_box

    image, is_original = index.page(document, page).render(index.encoder.page_pixels)
    if not is_original:
        raise AnchorFoldError(f"methods cannot be compared: {document} was deleted or changed since it was indexed.")
    names = [name.strip() for name in methods.split(",")]
    draw_case_study(
        require_comparable(index.encoder), image, query, names, output, boxes=[parse_box(text) for text in boxes]
    )


def draw_task_page(
    encoder: BackboneEncoder, task: str, query_id: str, methods: str, boxes: list[str], output: Path
) -> None:
    """Draw the most relevant page of a benchmark query under several compression methods, as in the paper."""
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.figures.case_study import draw_case_study, parse_box
    from anchorfold.evaluation.layer_choice import choose_layers

    corpora = find_corpora(task)
    if corpora is None or len(corpora) != 1:
        raise AnchorFoldError(f"{task} is not a task of a benchmark: name one, such as Vidore2ESGReportsRetrieval.")
    (corpus,) = corpora
    query = next((q for q in corpus.queries if query_id in (q.id, q.id.rpartition("/")[2])), None)
    if query is None:
        known = ", ".join(q.id for q in corpus.queries[:3])
        raise AnchorFoldError(f"{task} has no query {query_id!r}: it has {known} and others.")
    choose_layers(encoder, None, corpora)
    page = max(sorted(query.relevant), key=query.relevant.__getitem__)
    ((_, image),) = corpus.pages(encoder.page_pixels, only={page})
    names = [name.strip() for name in methods.split(",")]
    draw_case_study(encoder, image, query.text, names, output, boxes=[parse_box(text) for text in boxes])
    out.print(f"{query.text!r} on page {page}; layer settings: {encoder.layer_settings}", markup=False)
