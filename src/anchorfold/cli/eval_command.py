"""`anchorfold eval`: every method and ratio from one encoding pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, note, out, quiet_libraries
from anchorfold.cli.options import (
    AllowPickle,
    Batch,
    Bidirectional,
    Calibration,
    Device,
    Documents,
    Loaders,
    Methods,
    TrustRemoteCode,
    numbers,
)
from anchorfold.cli.printing import table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.backbones import Retriever
    from anchorfold.evaluation.corpus import Corpus
    from anchorfold.evaluation.methods import Method
    from anchorfold.evaluation.results import Row

DEFAULT_RATIOS = "0.5,0.2,0.1,0.05"


@app.command("eval", rich_help_panel="Science")
def eval_command(
    corpus: Annotated[str, typer.Argument(help="paper (its three suites), vidore-v1, vidore-v2, vidore-v3, real-mm-rag, a task of theirs, or a folder with pdfs/ and queries.jsonl.", show_default=False)],  # noqa: E501
    model: Annotated[list[str] | None, typer.Option(help="A model name or folder; several, one after the other.", show_default=DEFAULT_MODEL)] = None,  # noqa: E501
    methods: Methods = "all",
    ratios: Annotated[str | None, typer.Option(help="Ratios with commas between.", show_default=f"{DEFAULT_RATIOS}, none with --cap")] = None,  # noqa: E501
    caps: Annotated[str, typer.Option("--cap", "--caps", help="Fixed numbers of vectors a page, such as 128.")] = "",
    calibration: Calibration = None,
    documents: Documents = None,
    to: Annotated[Path, typer.Option("--to", help="Where scores and results go, a folder a model in it.")] = Path("results"),  # noqa: E501
    batch: Batch = None,
    loaders: Loaders = None,
    keep_vectors: Annotated[bool, typer.Option("--keep-vectors", help="Store all vectors too (float16).")] = False,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Measure every method at every ratio: NDCG@5, what is kept of it and of the score; the paper's figures beside.

    Queries are encoded first, then each page once; it is compressed by every method and scored at once, and no vectors
    are stored. A run that was interrupted goes on where it stopped. A benchmark's data sets come from the hub through
    mteb, and their macro-average is printed last.

    \b
    Examples
      anchorfold eval ./my-corpus
      anchorfold eval paper --model vidore/colpali-v1.3-hf
      anchorfold eval ./my-corpus --methods anchorfold,sap --ratios 0.2,0.05
      anchorfold eval vidore-v2 --cap 128 --methods anchorfold,agc --model ./my-colqwen --model ./my-colqwen-agc
    """
    from anchorfold.backbones import load
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.methods import choose_methods, obstacles

    quiet_libraries()
    corpora = find_corpora(corpus) or [local_corpus(corpus, documents)]
    ratios = ratios if ratios is not None else "" if caps else DEFAULT_RATIOS
    chosen = choose_methods(methods, numbers(ratios, float), numbers(caps, int))
    experiment = "methods" if any(m.ratio not in (None, 1.0) for m in chosen) else f"cap{caps}"
    names = model or [DEFAULT_MODEL]
    impossible: dict[str, str] = {}
    measured: set[str] = set()
    for name in names:
        retriever = load(
            name,
            device=device,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
            bidirectional=bidirectional,
        )
        reasons = obstacles(chosen, retriever.settings)
        if reasons and len(names) == 1:
            raise AnchorFoldError(next(iter(reasons.values())))
        possible = [m for m in chosen if m.label not in reasons]
        if reasons:
            note(f"{retriever.name} does without {', '.join(reasons)}.")
        impossible |= reasons
        measured |= {m.label for m in possible}
        run_suites(
            corpora, retriever, possible, to, experiment, calibration=calibration, batch=batch, loaders=loaders,
            keep_vectors=keep_vectors,
        )  # fmt: skip
    if left_out := {label: reason for label, reason in impossible.items() if label not in measured}:
        raise AnchorFoldError(next(iter(left_out.values())))


def run_suites(
    corpora: Sequence[Corpus],
    model: Retriever,
    methods: Sequence[Method],
    to: Path,
    experiment: str,
    *,
    calibration: str | None,
    batch: int | None,
    loaders: int | None,
    keep_vectors: bool = False,
    quiet: bool = False,
) -> list[list[Row]]:
    """Evaluate all corpora with one model: the plan first, a table each unless `quiet`, macro-averages last."""
    from anchorfold.compressors import wanted_signals
    from anchorfold.evaluation.held_out import find_held_out, ready_compressors
    from anchorfold.evaluation.plan import Plan
    from anchorfold.evaluation.results import RESULTS_FILE, macro_average
    from anchorfold.evaluation.run import CALIBRATED_FILE, evaluate, model_folder, slug

    base = model_folder(to, model) / slug(experiment)
    if wanted_signals((m.make() for m in methods), model.settings):
        model.warn_if_causal()
    plans = [Plan.of(c, len(methods)) for c in corpora]
    for plan in plans:
        err.print(str(plan), markup=False)
    err.print(f"layer settings of {model.name}: {model.settings}", markup=False)
    if len(plans) > 1:
        pages, size = sum(p.pages for p in plans), sum(p.bytes for p in plans)
        err.print(f"together {pages:,} pages, {size / 1e9:.2f} GB in {base}", markup=False)
    loaders = loaders if loaders is not None else 0 if model.device.type == "cpu" else 2
    rows: list[list[Row]] = []
    with err.status("calibrating") as status:
        waiting = any(not m.make().ready for m in methods)
        held_out = find_held_out(calibration, corpora, model.page_pixels) if waiting else None
        if held_out is not None and held_out.evaluated:
            note("no held-out pages can be reached: thresholds are calibrated on the evaluated pages (--calibration).")
        compressors, calibrated_on = ready_compressors(methods, model, held_out, base / CALIBRATED_FILE)
        for corpus in corpora:
            folder = base / slug(corpus.benchmark or "") / slug(corpus.name)
            measured = evaluate(
                corpus, model, methods, compressors, folder, status.update, calibrated_on=calibrated_on,
                experiment=experiment, batch=batch, loaders=loaders, keep_vectors=keep_vectors,
            )  # fmt: skip
            rows.append(measured)
            if not quiet:
                show(measured, f"{corpus.name}: {len(corpus.queries):,} queries, {model.name}")
            out.print(f"wrote {folder / RESULTS_FILE}", markup=False)
    for benchmark in dict.fromkeys(c.benchmark for c in corpora):
        sets = [r for r, c in zip(rows, corpora, strict=True) if c.benchmark == benchmark]
        if benchmark is not None and len(sets) > 1 and not quiet:
            title = f"{benchmark}: macro-average over {len(sets)} data sets, {model.name}"
            show(macro_average(sets, benchmark, model.family), title)
    return rows


def show(rows: Sequence[Row], title: str) -> None:
    """The tables of a report, in the terminal."""
    from anchorfold.evaluation.tables import method_tables

    for shown in method_tables([vars(row) for row in rows], title):
        columns = [(head, "right" if i else "left") for i, head in enumerate(shown.heads)]
        table(columns, shown.lines, shown.title)
