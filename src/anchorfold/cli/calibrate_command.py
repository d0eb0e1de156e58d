"""`anchorfold calibrate`: layer settings of a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, err, out, quiet_libraries
from anchorfold.cli.options import AllowPickle, Bidirectional, Device, TrustRemoteCode, parse_numbers
from anchorfold.cli.printing import print_report_table, print_table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.evaluation.calibration import Calibration, MethodComparison

MIN_PAIRS = 100


@app.command("calibrate", rich_help_panel="Research")
def calibrate_command(
    model: Annotated[str, typer.Argument(help="Model name or path.")] = "nano",
    pairs: Annotated[str, typer.Option(help="Corpus directory (pdfs/, queries.jsonl) or dataset with query and image.")] = "vidore/colpali_train_set",  # noqa: E501
    count: Annotated[int, typer.Option(help="Maximum number of pairs.", min=2)] = 500,
    seed: Annotated[int, typer.Option(help="Random seed of the pair selection.")] = 42,
    compare: Annotated[bool, typer.Option("--compare", help="Compare all training-free methods on the pairs.")] = False,
    ratios: Annotated[str, typer.Option(help="With --compare: comma-separated ratios.")] = "0.2,0.1,0.05",
    save: Annotated[bool, typer.Option("--save", help="Save the settings for all later indexes and evaluations with this model.")] = False,  # noqa: E501
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the settings to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help=f"Accept fewer than {MIN_PAIRS} pairs.")] = False,
    results: Annotated[Path | None, typer.Option(help="Results directory for `anchorfold report`.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Image file for layer profiles and paired gaps.")] = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Select a model's layer window and depth from unlabelled pairs (appendix D).

    Settings are written only with --save or --output. --save writes to the location that `anchorfold.load` reads:
    next to local weights or adapters, else the cache. --compare ranks the methods by score retention on this model.

    \b
    Examples
      anchorfold calibrate ./my-model --pairs ./my-corpus --save
      anchorfold calibrate vidore/colpali-v1.3-hf --compare --figure calibration.png
    """
    from anchorfold.attention.layer_settings import write_settings
    from anchorfold.backbones import load
    from anchorfold.evaluation.calibration import CALIBRATION_FILE, calibrate, compare_on_pairs
    from anchorfold.evaluation.calibration_pairs import Pair, PairSource, available_pairs, find_pairs
    from anchorfold.evaluation.run import model_folder
    from anchorfold.evaluation.run_folder import write_json

    available = available_pairs(pairs, count)
    if available < MIN_PAIRS and not force:
        raise AnchorFoldError(
            f"calibration needs at least {MIN_PAIRS} pairs, {pairs} gives {available}: use more pairs (--pairs, "
            "--count), or accept these with --force."
        )
    quiet_libraries()
    encoder = load(
        model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
        bidirectional=bidirectional,
    )  # fmt: skip
    encoder.warn_if_causal()
    targets = [path for path in (output, encoder.calibration_file if save else None) if path is not None]
    for target in targets:
        require_writable(target)
    with err.status("reading pairs") as status:

        def read_pairs() -> Iterator[Pair]:
            for number, pair in enumerate(find_pairs(pairs, encoder.page_pixels, count, seed, err.print), 1):
                status.update(f"pair {number} of at most {count}")
                yield pair

        calibration = calibrate(encoder, PairSource(read_pairs))
        print_candidates(calibration, encoder.family, pairs)
        if compare:
            encoder.layer_settings = calibration.settings
            print_comparison(
                compare_on_pairs(encoder, PairSource(read_pairs), parse_numbers(ratios, float, "--ratios"))
            )
    print_verdict(calibration)
    for target in targets:
        write_settings(target, calibration.settings)
        used = f"load({model!r})" if target != output else f"load({model!r}, settings={str(output)!r})"
        out.print(f"wrote {target}: used by {used}", markup=False)
    if not targets:
        out.print(
            f"The settings are not saved: --save writes {encoder.calibration_file}, -o another file.", markup=False
        )
    if results is not None:
        stored = model_folder(results, encoder) / CALIBRATION_FILE
        write_json(stored, {"model": encoder.name, "family": encoder.family, "pairs": pairs, **calibration.as_json()})
        out.print(f"wrote {stored}", markup=False)
    if figure is not None:
        from anchorfold.evaluation.figures.calibration_profiles import draw_calibration

        draw_calibration({encoder.name: calibration}, figure)
        out.print(f"wrote {figure}", markup=False)


def require_writable(target: Path) -> None:
    """Raise before a long calibration if its result cannot be written."""
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise AnchorFoldError(
            f"{target} cannot be written: name another file with --output, and read it with load(..., settings=FILE)."
        )


def print_candidates(calibration: Calibration, family: str, pairs: str) -> None:
    """Print the best window of each depth, with the paper's figures for the same model and pairs."""
    from anchorfold.evaluation.tables import calibration_table

    print_report_table(calibration_table(calibration, family, pairs))
    first, last = calibration.settings.sap_window
    out.print(f"The rule of SAP selects layers {first}-{last}.")


def print_verdict(calibration: Calibration) -> None:
    """Print whether anchors by centrality are better than random anchors for this model, and the best graph."""
    from anchorfold.evaluation.calibration import USEFUL_GAIN

    gain, error = calibration.advantage
    figures = f"{gain:+.2f} +- {error:.2f} points against random anchors ({fmean(calibration.random):.2f} %)"
    if calibration.is_suitable:
        out.print(f"AnchorFold suits this backbone: {figures}.")
    elif calibration.is_suitable is None:
        count = len(calibration.random)
        out.print(f"{count} pairs do not show whether AnchorFold suits this backbone: {figures}. Use more pairs.")
    else:
        reason = f"A gain below {USEFUL_GAIN:g} points is too small: choose another method (--compare)"
        out.print(f"AnchorFold does not suit this backbone: {figures}. {reason}.")
    graph, lead, spread = calibration.best_graph
    if lead:
        out.print(
            f"AnchorFold with the paper's graph is not the best choice for this backbone: the graph {graph} retains "
            f"{lead:+.2f} +- {spread:.2f} points more. Use `index --graph {graph}`, or another method (--compare)."
        )


def print_comparison(comparisons: list[MethodComparison]) -> None:
    """Print the methods by score retention at each ratio."""
    for ratio in dict.fromkeys(c.ratio for c in comparisons):
        ranked = sorted((c for c in comparisons if c.ratio == ratio), key=lambda c: -c.retention)
        rows = [
            (c.method, f"{c.retention:.2f}",
             "" if c.method == "anchorfold" else f"{c.lead:+.2f} ({c.low:+.2f} to {c.high:+.2f})")
            for c in ranked
        ]  # fmt: skip
        print_table(["method", ">score retention, %", ">AnchorFold's lead (95 % CI)"], rows, f"ratio {ratio:g}")
        out.print(f"{ranked[0].method} retains the most score at ratio {ratio:g}.\n")
