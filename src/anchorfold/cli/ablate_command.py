"""`anchorfold ablate`: ablations of the method."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, note, quiet_libraries
from anchorfold.cli.eval_command import run_suites
from anchorfold.cli.options import (
    AllowPickle,
    BatchSize,
    Bidirectional,
    CorpusDocuments,
    Device,
    Loaders,
    Model,
    ResultsPath,
    Settings,
    TrustRemoteCode,
)
from anchorfold.cli.printing import print_report_table

if TYPE_CHECKING:
    from anchorfold.backbones import BackboneEncoder
    from anchorfold.evaluation.corpus import Corpus
    from anchorfold.evaluation.methods import Method


class Ablation(StrEnum):
    """The choice to vary."""

    variants = "variants"
    windows = "windows"
    depths = "depths"


@app.command("ablate", rich_help_panel="Research")
def ablate_command(
    ablation: Annotated[Ablation, typer.Argument(help="variants (table 1 of the paper), windows (nine), or depths.")],
    corpus: Annotated[str, typer.Argument(help="Benchmark (vidore-v2 in the paper), task, or directory with pdfs/ and queries.jsonl.", show_default=False)],  # noqa: E501
    model: Model = DEFAULT_MODEL,
    ratio: Annotated[float, typer.Option(help="Fraction of vectors to keep per page, in (0, 1].")] = 0.2,
    pairs: Annotated[str | None, typer.Option(help="windows, depths: held-out pairs, as a corpus directory or a dataset with query and image. Default: the ColPali training set if the hub is reachable.")] = None,  # noqa: E501
    count: Annotated[int, typer.Option(help="Number of pairs.", min=2)] = 500,
    settings: Settings = None,
    documents: CorpusDocuments = None,
    output: ResultsPath = Path("results"),
    batch_size: BatchSize = None,
    loaders: Loaders = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Vary one part of the method: its components, layer window or depth.

    As in appendix D of the paper, windows (and the window of each depth) are selected on held-out pairs by score
    retention, and validated on the corpus by NDCG@5.

    \b
    Examples
      anchorfold ablate variants ./my-corpus
      anchorfold ablate windows vidore-v2 --model ./my-colqwen --bidirectional
    """
    from anchorfold.backbones import load
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.layer_choice import choose_layers
    from anchorfold.evaluation.methods import Method
    from anchorfold.evaluation.run import model_folder
    from anchorfold.evaluation.tables import ABLATION_FILE, ablation_table, save_ablation

    quiet_libraries()
    corpora = find_corpora(corpus) or [local_corpus(corpus, documents)]
    encoder = load(
        model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
        bidirectional=bidirectional,
    )  # fmt: skip
    choose_layers(encoder, settings, corpora)
    with err.status("selecting windows"):
        changes, retentions, source = choose_changes(ablation, encoder, corpora, ratio, pairs, count)
    methods = [Method("none", 1.0), *changes]
    rows = run_suites(
        corpora, encoder, methods, output, ablation, calibration=None, batch_size=batch_size, loaders=loaders,
        quiet=True,
    )  # fmt: skip
    ndcg = [fmean(of_corpus[i].ndcg for of_corpus in rows) for i in range(len(methods))]
    retained = [fmean(of_corpus[i].score_retention for of_corpus in rows) for i in range(1, len(methods))]
    layers = encoder.layer_settings
    result = {
        "ablation": ablation.value, "corpus": corpus, "data_sets": len(corpora), "model": encoder.name,
        "family": encoder.family, "fingerprint": encoder.fingerprint, "ratio": ratio, "full": ndcg[0],
        "layer_settings": str(layers), "pairs": source, "chosen": list(layers.window), "steps": layers.steps,
        "rows": [
            {"name": m.name, "window": list(m.window or layers.window), "ndcg": n, "score_retention": k,
             "pair_retention": None if retentions is None else retentions[i]}
            for i, (m, n, k) in enumerate(zip(changes, ndcg[1:], retained, strict=True))
        ],
    }  # fmt: skip
    save_ablation(model_folder(output, encoder) / ablation / ABLATION_FILE, result)
    print_report_table(ablation_table(result))


def choose_changes(
    ablation: Ablation, encoder: BackboneEncoder, corpora: Sequence[Corpus], ratio: float, pairs: str | None, count: int
) -> tuple[list[Method], list[float] | None, str]:
    """Return the methods to run, their score retention on held-out pairs if any, and the source of the pairs."""
    from anchorfold.evaluation.calibration import calibrate, window_retentions
    from anchorfold.evaluation.calibration_pairs import held_out_pairs
    from anchorfold.evaluation.methods import ANCHORFOLD, Method, relative_windows, variants

    if ablation is Ablation.variants:
        names = [ANCHORFOLD, *(variant for variant, (name, _) in variants().items() if name == ANCHORFOLD)]
        return [Method(n, ratio) for n in names], None, ""
    settings = encoder.layer_settings
    given, source, evaluated = held_out_pairs(pairs, corpora, encoder.page_pixels, count, err.print)
    if evaluated:
        note("no held-out pairs are available: windows are selected on pairs of the evaluated pages (--pairs).")
    if ablation is Ablation.windows:
        windows = relative_windows(settings.layers)
        changes = [Method(name, ratio, window=window) for name, window in windows]
        return changes, window_retentions(encoder, given, [(w, settings.steps) for _, w in windows]), source
    calibration = calibrate(encoder, given)
    changes = [Method(f"K={k}", ratio, window=window, steps=k) for k, window in calibration.windows.items()]
    return changes, [fmean(calibration.values[k]) for k in calibration.windows], source
