"""`anchorfold ablate`: the paper's ablations and validations, each one command and a table."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, note, out, quiet_libraries
from anchorfold.cli.eval_command import run_suites
from anchorfold.cli.options import AllowPickle, Batch, Bidirectional, Device, Documents, Loaders, Model, TrustRemoteCode
from anchorfold.cli.printing import table

if TYPE_CHECKING:
    from anchorfold.backbones import Retriever
    from anchorfold.evaluation.corpus import Corpus
    from anchorfold.evaluation.methods import Method


class What(StrEnum):
    """What to change."""

    variants = "variants"
    windows = "windows"
    depths = "depths"


@app.command("ablate", rich_help_panel="Science")
def ablate_command(
    what: Annotated[What, typer.Argument(help="variants (table 1), windows (nine) or depths.")],
    corpus: Annotated[str, typer.Argument(help="A benchmark (the paper: vidore-v2), a task, or a folder with pdfs/ and queries.jsonl.", show_default=False)],  # noqa: E501
    model: Model = DEFAULT_MODEL,
    ratio: Annotated[float, typer.Option(help="The budget.")] = 0.2,
    pairs: Annotated[str | None, typer.Option(help="windows, depths: held-out pairs, a corpus folder or a dataset with query and image. Default: the ColPali training set where a hub can be reached.")] = None,  # noqa: E501
    count: Annotated[int, typer.Option(help="Pairs to use.", min=2)] = 500,
    documents: Documents = None,
    to: Annotated[Path, typer.Option("--to", help="Where scores and results go, a folder a model in it.")] = Path("results"),  # noqa: E501
    batch: Batch = None,
    loaders: Loaders = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Change one choice of the method at a time: its parts, its layer window, or its depth.

    As in the paper's appendix D, windows are judged (and each depth's own window is found) on held-out pairs by score
    retention, and NDCG@5 on the corpus validates the choice.

    \b
    Examples
      anchorfold ablate variants ./my-corpus
      anchorfold ablate windows vidore-v2 --model ./my-colqwen --bidirectional
    """
    from anchorfold.backbones import load
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.methods import Method
    from anchorfold.evaluation.run import model_folder
    from anchorfold.evaluation.validation import ABLATION_FILE, save_ablation, table_lines

    quiet_libraries()
    corpora = find_corpora(corpus) or [local_corpus(corpus, documents)]
    retriever = load(
        model,
        device=device,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        bidirectional=bidirectional,
    )
    with err.status("finding windows"):
        changes, retentions, source = choose_changes(what, retriever, corpora, ratio, pairs, count)
    methods = [Method("none", 1.0), *changes]
    rows = run_suites(corpora, retriever, methods, to, what, calibration=None, batch=batch, loaders=loaders, quiet=True)
    ndcg = [fmean(of_corpus[i].ndcg for of_corpus in rows) for i in range(len(methods))]
    retained = [fmean(of_corpus[i].score_retention for of_corpus in rows) for i in range(1, len(methods))]
    result = {
        "ablation": what.value, "corpus": corpus, "data_sets": len(corpora), "model": retriever.name,
        "family": retriever.family, "fingerprint": retriever.fingerprint, "ratio": ratio, "full": ndcg[0],
        "layer_settings": str(retriever.settings), "pairs": source,
        "chosen": list(retriever.settings.window), "steps": retriever.settings.steps,
        "rows": [
            {"name": m.name, "window": list(m.window or retriever.settings.window), "ndcg": n, "score_retention": k,
             "pair_retention": None if retentions is None else retentions[i]}
            for i, (m, n, k) in enumerate(zip(changes, ndcg[1:], retained, strict=True))
        ],
    }  # fmt: skip
    folder = model_folder(to, retriever) / what
    save_ablation(folder / ABLATION_FILE, result)
    shown = table_lines(result)
    table([(h, "right" if i else "left") for i, h in enumerate(shown.heads)], shown.lines, shown.title)
    out.print(shown.note, markup=False)


def choose_changes(
    what: What, model: Retriever, corpora: Sequence[Corpus], ratio: float, pairs: str | None, count: int
) -> tuple[list[Method], list[float] | None, str]:
    """Methods to run, their score retention on held-out pairs where windows are at stake, and where those are from."""
    from anchorfold.evaluation.calibration import calibrate, window_retentions
    from anchorfold.evaluation.methods import OURS, Method, relative_windows, variants
    from anchorfold.evaluation.pairs import held_out_pairs

    if what is What.variants:
        names = [OURS, *(variant for variant, (name, _) in variants().items() if name == OURS)]
        return [Method(n, ratio) for n in names], None, ""
    given, source, evaluated = held_out_pairs(pairs, corpora, model.page_pixels, count)
    if evaluated:
        note("no held-out pairs can be reached: windows are judged on pairs of the evaluated pages (--pairs).")
    if what is What.windows:
        windows = relative_windows(model.settings.layers)
        changes = [Method(name, ratio, window=window) for name, window in windows]
        return changes, window_retentions(model, given, [(w, model.settings.steps) for _, w in windows]), source
    calibration = calibrate(model, given)
    changes = [Method(f"K={k}", ratio, window=window, steps=k) for k, window in calibration.windows.items()]
    return changes, [fmean(calibration.values[k]) for k in calibration.windows], source
