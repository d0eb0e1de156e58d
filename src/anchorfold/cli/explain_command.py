"""`anchorfold explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorfold.cli.app import app, note, out, quiet_libraries
from anchorfold.cli.options import AllowPickle, Device, ModelPlace, TrustRemoteCode
from anchorfold.cli.printing import table
from anchorfold.errors import AnchorFoldError


@app.command("explain", rich_help_panel="See why")
def explain_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    query: Annotated[str, typer.Argument(help="The query.", show_default=False)],
    page: Annotated[str, typer.Option("--page", help="document:page, as report.pdf:12. Default: the best page.")] = "",
    to: Annotated[Path, typer.Option("--to", help="The picture: a PNG or JPEG file.")] = Path("why.png"),
    compare: Annotated[str, typer.Option(help="The case study: methods with commas between, at three ratios.")] = "",
    box: Annotated[list[str] | None, typer.Option(help="--compare: frame where the answer is; left,top,right,bottom as fractions of the page.")] = None,  # noqa: E501
    model: ModelPlace = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:  # fmt: skip
    """Draw why a page matches: which patches answered which word, also on a compressed page.

    \b
    Examples
      anchorfold explain my.index "net revenue by region"
      anchorfold explain my.index "net revenue" --page report.pdf:12 --to why.png
      anchorfold explain my.index "net revenue" --compare anchorfold,sap --to case.png
    """
    from anchorfold.explain.pictures import draw, explain
    from anchorfold.index import Index

    quiet_libraries()
    opened = Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    document, number = split_page(page) if page else best_page(opened, query)
    if compare:
        from anchorfold.backbones.encoder import require_comparable
        from anchorfold.documents.originals import find_image
        from anchorfold.evaluation.figures.case_study import draw_case_study, parse_box

        image, original = find_image(opened.page(document, number)[1], opened.model.page_pixels)
        if not original:
            raise AnchorFoldError(
                "methods can only be compared on the original document, which is gone or has changed."
            )
        methods = [m.strip() for m in compare.split(",")]
        boxes = [parse_box(text) for text in box or ()]
        draw_case_study(require_comparable(opened.model), image, query, methods, to, boxes=boxes)
        out.print(f"wrote {to}", markup=False)
        return
    explanation = explain(opened, query, document, number)
    if not explanation.is_original:
        note(f"{explanation.document} is gone or has changed since it was indexed: drawn on its thumbnail.")
    try:
        draw(explanation).save(to)
    except (OSError, ValueError) as error:
        raise AnchorFoldError(f"{to} cannot be written: {error}.") from error
    evidence = explanation.evidence
    rows = [(word, f"{score:.3f}") for word, score in zip(evidence.words, evidence.scores.tolist(), strict=True)]
    table([("word", "left"), ("score", "right")], rows)
    retention = "" if explanation.retention is None else f", {explanation.retention:.1f} % of the full index's score"
    out.print(f"{explanation.document} page {explanation.page}: score {evidence.score:.3f}{retention}", markup=False)
    out.print(f"wrote {to}", markup=False)


def split_page(text: str) -> tuple[str, int]:
    """`report.pdf:12` into its parts."""
    document, _, number = text.rpartition(":")
    if not document or not number.isdigit() or int(number) < 1:
        raise AnchorFoldError(f"--page wants document:page, such as report.pdf:12, not {text!r}.")
    return document, int(number)


def best_page(index, query: str) -> tuple[str, int]:  # type: ignore[no-untyped-def]
    """The first hit."""
    hits = index.search(query, top=1)
    if not hits:
        raise AnchorFoldError(f"nothing matches {query!r}.")
    return hits[0].source, hits[0].page
