"""`anchorfold eval`: evaluate compression methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, note, out, quiet_libraries
from anchorfold.cli.options import (
    AllowPickle,
    BatchSize,
    Bidirectional,
    Calibration,
    CorpusDocuments,
    Device,
    Loaders,
    Methods,
    ResultsPath,
    Settings,
    TrustRemoteCode,
    parse_numbers,
)
from anchorfold.cli.printing import print_report_table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.backbones import BackboneEncoder
    from anchorfold.evaluation.corpus import Corpus
    from anchorfold.evaluation.methods import Method
    from anchorfold.evaluation.results import Row

DEFAULT_RATIOS, SMOKE_RATIOS = "0.5,0.2,0.1,0.05", "0.2,0.1,0.05"


@app.command("eval", rich_help_panel="Research")
def eval_command(
    corpus: Annotated[str, typer.Argument(help="paper (all three suites), smoke (its smallest data set), vidore-v1, vidore-v2, vidore-v3, real-mm-rag, one of their tasks, or a directory with pdfs/ and queries.jsonl.", show_default=False)],  # noqa: E501
    model: Annotated[list[str] | None, typer.Option(help="Model name or path; may be repeated.", show_default=DEFAULT_MODEL)] = None,  # noqa: E501
    methods: Methods = "all,1d-pooling@cap1",
    ratios: Annotated[str | None, typer.Option(help="Comma-separated ratios.", show_default=f"{DEFAULT_RATIOS}; none with --cap")] = None,  # noqa: E501
    caps: Annotated[str, typer.Option("--cap", "--caps", help="Comma-separated maximums of vectors per page, such as 128.")] = "",  # noqa: E501
    settings: Settings = None,
    calibration: Calibration = None,
    documents: CorpusDocuments = None,
    output: ResultsPath = Path("results"),
    batch_size: BatchSize = None,
    loaders: Loaders = None,
    keep_vectors: Annotated[bool, typer.Option("--keep-vectors", help="Store all vectors (float16).")] = False,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Measure NDCG@5 and retention of each method at each ratio.

    Each page is encoded once, compressed by every method and scored immediately; vectors are not stored. An
    interrupted run is resumed. Benchmarks are downloaded with mteb, and their macro-average is printed last. For the
    paper's tasks, the paper's figures are printed too. `all` selects the paper's methods, and its clustering and
    pooling with normalised means; 1d-pooling@cap1 is the single-vector baseline.

    \b
    Examples
      anchorfold eval ./my-corpus
      anchorfold eval smoke --model vidore/colpali-v1.3
      anchorfold eval paper --model vidore/colpali-v1.3
      anchorfold eval ./my-corpus --methods anchorfold,sap --ratios 0.2,0.05
      anchorfold eval vidore-v2 --cap 128 --methods anchorfold,agc --model ./my-colqwen --model ./my-colqwen-agc
    """
    from anchorfold.backbones import load
    from anchorfold.cli.report_command import report_command
    from anchorfold.evaluation.benchmarks import SMOKE, find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.layer_choice import choose_layers
    from anchorfold.evaluation.methods import choose_methods, unsupported_methods

    quiet_libraries()
    corpora = find_corpora(corpus) or [local_corpus(corpus, documents)]
    default = "" if caps else SMOKE_RATIOS if corpus == SMOKE else DEFAULT_RATIOS
    ratios = ratios if ratios is not None else default
    chosen = choose_methods(methods, parse_numbers(ratios, float, "--ratios"), parse_numbers(caps, int, "--caps"))
    experiment = "methods" if any(m.ratio not in (None, 1.0) for m in chosen) else f"cap{caps}"
    names = model or [DEFAULT_MODEL]
    unsupported: dict[str, str] = {}
    measured: set[str] = set()
    for name in names:
        encoder = load(
            name, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
            bidirectional=bidirectional,
        )  # fmt: skip
        choose_layers(encoder, settings, corpora)
        reasons = unsupported_methods(chosen, encoder.layer_settings)
        if reasons and len(names) == 1:
            raise AnchorFoldError(next(iter(reasons.values())))
        if reasons:
            note(f"{encoder.name} does not support {', '.join(reasons)}.")
        supported = [m for m in chosen if m.label not in reasons]
        unsupported |= reasons
        measured |= {m.label for m in supported}
        run_suites(
            corpora, encoder, supported, output, experiment, calibration=calibration, batch_size=batch_size,
            loaders=loaders, keep_vectors=keep_vectors,
        )  # fmt: skip
    if left_out := [reason for label, reason in unsupported.items() if label not in measured]:
        raise AnchorFoldError(left_out[0])
    if corpus == SMOKE:
        report_command(output)
        out.print(f"Attach {output / 'report.md'} to an issue to share these results.", markup=False)


def run_suites(
    corpora: Sequence[Corpus],
    encoder: BackboneEncoder,
    methods: Sequence[Method],
    output: Path,
    experiment: str,
    *,
    calibration: str | None,
    batch_size: int | None,
    loaders: int | None,
    keep_vectors: bool = False,
    quiet: bool = False,
) -> list[list[Row]]:
    """Evaluate all corpora with one model: print the plan, a table per corpus unless `quiet`, and macro-averages."""
    from anchorfold.compressors import required_signals
    from anchorfold.evaluation.held_out_pages import calibrated_compressors, find_held_out
    from anchorfold.evaluation.results import RESULTS_FILE, macro_average
    from anchorfold.evaluation.run import CALIBRATED_FILE, RunPlan, evaluate, model_folder, slug

    base = model_folder(output, encoder) / slug(experiment)
    if required_signals((m.make() for m in methods), encoder.layer_settings):
        encoder.warn_if_causal()
    plans = [RunPlan.of(c, len(methods)) for c in corpora]
    for plan in plans:
        err.print(str(plan), markup=False)
    err.print(f"layer settings of {encoder.name}: {encoder.layer_settings}", markup=False)
    if len(plans) > 1:
        pages, size = sum(p.pages for p in plans), sum(p.bytes for p in plans)
        err.print(f"total: {pages:,} pages, {size / 1e9:.2f} GB in {base}", markup=False)
    loaders = loaders if loaders is not None else 0 if encoder.device.type == "cpu" else 2
    rows: list[list[Row]] = []
    with err.status("calibrating") as status:
        needs_calibration = any(not m.make().ready for m in methods)
        held_out = find_held_out(calibration, corpora, encoder.page_pixels, err.print) if needs_calibration else None
        if held_out is not None and held_out.evaluated:
            note("no held-out pages are available: thresholds are calibrated on the evaluated pages (--calibration).")
        compressors, calibrated_on = calibrated_compressors(
            methods, encoder, held_out, base / CALIBRATED_FILE, batch_size
        )
        for corpus in corpora:
            folder = base / slug(corpus.benchmark or "") / slug(corpus.name)
            corpus_rows = evaluate(
                corpus, encoder, methods, compressors, folder, status.update, calibrated_on=calibrated_on,
                experiment=experiment, batch=batch_size, loaders=loaders, keep_vectors=keep_vectors,
            )  # fmt: skip
            rows.append(corpus_rows)
            if not quiet:
                print_rows(corpus_rows, f"{corpus.name}: {len(corpus.queries):,} queries, {encoder.name}")
            out.print(f"wrote {folder / RESULTS_FILE}", markup=False)
    for benchmark in dict.fromkeys(c.benchmark for c in corpora):
        sets = [r for r, c in zip(rows, corpora, strict=True) if c.benchmark == benchmark]
        if benchmark is not None and len(sets) > 1 and not quiet:
            title = f"{benchmark}: macro-average of {len(sets)} datasets, {encoder.name}"
            print_rows(macro_average(sets, benchmark, encoder.family), title)
    return rows


def print_rows(rows: Sequence[Row], title: str) -> None:
    """Print results as the tables of a report."""
    from anchorfold.evaluation.tables import method_tables

    for table in method_tables([vars(row) for row in rows], title):
        print_report_table(table)
