"""`anchorfold ablate`: the paper's ablations and validations, each one command and a table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, out, quiet_libraries
from anchorfold.cli.options import Device, Documents, Model, TrustRemoteCode
from anchorfold.cli.printing import table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.backbones import Retriever
    from anchorfold.evaluation.corpus import Corpus
    from anchorfold.evaluation.methods import Method

PAPER_NAMES = {"anchorfold": "full method", "one-step": "one step", "random-anchors": "random anchors",
               "no-folding": "no folding", "uniform-weights": "uniform weights"}  # fmt: skip


class What(StrEnum):
    """What to change."""

    variants = "variants"
    windows = "windows"
    depths = "depths"


@app.command("ablate", rich_help_panel="Science")
def ablate_command(
    what: Annotated[What, typer.Argument(help="variants (table 1), windows (nine) or depths.")],
    corpus: Annotated[Path, typer.Argument(help="A folder with pdfs/ and queries.jsonl.", show_default=False)],
    model: Model = DEFAULT_MODEL,
    ratio: Annotated[float, typer.Option(help="The budget.")] = 0.2,
    pairs: Annotated[int, typer.Option(help="depths: pairs of the corpus to find each depth's own window with.")] = 100,
    documents: Documents = None,
    to: Annotated[Path | None, typer.Option("--to", help="Where vectors and results go.")] = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:  # fmt: skip
    """Change one choice of the method at a time: its parts, its layer window, or its depth.

    \b
    Examples
      anchorfold ablate variants ./my-corpus
      anchorfold ablate windows ./my-corpus --model vidore/colpali-v1.3-hf
    """
    from anchorfold.backbones import load
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.methods import Method
    from anchorfold.evaluation.results import RESULTS_FILE
    from anchorfold.evaluation.run import evaluate, results_folder

    quiet_libraries()
    found = local_corpus(corpus, documents)
    retriever = load(model, device=device, trust_remote_code=trust_remote_code)
    folder = to or results_folder(f"{what}-{found.name}", retriever)
    with err.status("preparing") as status:
        changes = choose_changes(what, retriever, found, ratio, pairs)
        rows = evaluate(found, retriever, [Method("none", 1.0), *(m for m, _ in changes)], folder, status.update)
    first = rows[1].ndcg
    lines = [
        (method.name, beside[0], f"{row.score_kept:.2f}", f"{row.ndcg:.2f}", f"{row.ndcg - first:+.2f}", beside[1])
        for row, (method, beside) in zip(rows[1:], changes, strict=True)
    ]
    heads = ("layers", "score kept, %", "NDCG@5", "difference", "paper, ColQwen2.5")
    title = f"{what} on {found.name} with {retriever.name}, ratio {ratio:g}; full index {rows[0].ndcg:.2f}"
    table([("", "left"), *((h, "right") for h in heads)], lines, title)
    out.print(f"wrote {folder / RESULTS_FILE}", markup=False)


def choose_changes(
    what: What, model: Retriever, corpus: Corpus, ratio: float, pairs: int
) -> list[tuple[Method, tuple[str, str]]]:
    """Methods to run, each with its layers and the paper's NDCG@5."""
    from anchorfold.evaluation import paper
    from anchorfold.evaluation.calibration import calibrate
    from anchorfold.evaluation.methods import VARIANTS, Method, relative_windows
    from anchorfold.evaluation.pairs import corpus_pairs

    first, last = model.settings.window
    if what is What.variants:
        reported = {r["variant"]: r["ndcg"] for r in paper.table("ablation")}
        names = ["anchorfold", *VARIANTS]
        return [(Method(n, ratio), (f"{first}-{last}", reported[PAPER_NAMES[n]])) for n in names]
    if what is What.windows:
        reported = {r["relative"]: r["ndcg"] for r in paper.table("windows")}
        return [
            (Method(name, ratio, window=window), (f"{window[0]}-{window[1]}", reported.get(name.rstrip(" %"), "")))
            for name, window in relative_windows(model.settings.layers)
        ]
    if pairs < 2:
        raise AnchorFoldError("finding each depth's window needs at least 2 pairs.")
    reported = {r["steps"]: r["ndcg"] for r in paper.table("depths")}
    windows = calibrate(model, corpus_pairs(corpus, model.page_pixels, pairs)).windows
    return [
        (
            Method(f"K={depth}", ratio, window=window, steps=depth),
            (f"{window[0]}-{window[1]}", reported.get(str(depth), "")),
        )
        for depth, window in windows.items()
    ]
