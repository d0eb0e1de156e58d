"""`anchorfold calibrate`: window, depth, and whether the method suits a backbone; no labels needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, err, out, quiet_libraries
from anchorfold.cli.options import AllowPickle, Bidirectional, Device, TrustRemoteCode, numbers
from anchorfold.cli.printing import table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from anchorfold.evaluation.calibration import Calibration
    from anchorfold.evaluation.suitability import Suitability


MIN_PAIRS = 100


@app.command("calibrate", rich_help_panel="Science")
def calibrate_command(
    model: Annotated[str, typer.Argument(help="A model name or folder.")] = "nano",
    pairs: Annotated[str, typer.Option(help="A corpus folder (pdfs/, queries.jsonl) or a dataset with query and image.")] = "vidore/colpali_train_set",  # noqa: E501
    count: Annotated[int, typer.Option(help="Pairs to use.", min=2)] = 500,
    seed: Annotated[int, typer.Option(help="Of the choice of pairs.")] = 42,
    compare: Annotated[bool, typer.Option("--compare", help="Run every training-free method on them.")] = False,
    ratios: Annotated[str, typer.Option(help="Ratios to compare at.")] = "0.2,0.1,0.05",
    save: Annotated[bool, typer.Option("--save", help="Write the settings where `load` looks for them: all later indexes and evaluations of this model use them.")] = False,  # noqa: E501
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the settings to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help=f"Accept fewer than {MIN_PAIRS} pairs.")] = False,
    results: Annotated[Path | None, typer.Option(help="Store profiles and candidates there too, for `anchorfold report`.")] = None,  # noqa: E501
    figure: Annotated[Path | None, typer.Option(help="Draw profiles and paired gaps into this file.")] = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Find a backbone's layer window and depth from unlabelled pairs, as the paper's appendix D does.

    Nothing is written without --save or --output. --save writes where `anchorfold.load` looks: beside a folder's
    weights or adapters, else in your cache. --compare ranks the compressors by the score they retain on this backbone.

    \b
    Examples
      anchorfold calibrate ./my-model --pairs ./my-corpus --save
      anchorfold calibrate vidore/colpali-v1.3-hf --compare --figure calibration.png
    """
    from anchorfold.attention.layer_settings import write_settings
    from anchorfold.backbones import load
    from anchorfold.evaluation.calibration import CALIBRATION_FILE, calibrate
    from anchorfold.evaluation.pairs import Pair, available_pairs, find_pairs
    from anchorfold.evaluation.run import model_folder
    from anchorfold.evaluation.run_folder import write_json

    require_pairs(available_pairs(pairs, count), pairs, force)
    quiet_libraries()
    retriever = load(
        model,
        device=device,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        bidirectional=bidirectional,
    )
    retriever.warn_if_causal()
    targets = [path for path in (output, retriever.calibration_file if save else None) if path is not None]
    for target in targets:
        require_writable(target)
    with err.status("reading pairs") as status:

        def counted() -> Iterator[Pair]:
            for number, pair in enumerate(find_pairs(pairs, retriever.page_pixels, count, seed), 1):
                status.update(f"pair {number} of at most {count}")
                yield pair

        calibration = calibrate(retriever, counted())
        show(calibration, retriever.family, pairs)
        if compare:
            from anchorfold.evaluation.suitability import compare_on_pairs

            retriever.settings = calibration.settings
            show_comparison(compare_on_pairs(retriever, counted(), numbers(ratios, float)))
    verdict(calibration)
    for target in targets:
        write_settings(target, calibration.settings)
        used = f"load({model!r})" if target != output else f"load({model!r}, settings={str(output)!r})"
        out.print(f"wrote {target}: {used} uses it", markup=False)
    if not targets:
        out.print(
            f"The settings are not saved: --save writes {retriever.calibration_file}, -o another file.", markup=False
        )
    if results is not None:
        stored = model_folder(results, retriever) / CALIBRATION_FILE
        header = {"model": retriever.name, "family": retriever.family, "pairs": pairs}
        write_json(stored, {**header, **calibration.as_json()})
        out.print(f"wrote {stored}", markup=False)
    if figure is not None:
        from anchorfold.evaluation.figures.calibration import draw_calibration

        draw_calibration({retriever.name: calibration}, figure)
        out.print(f"wrote {figure}", markup=False)


def require_pairs(available: int, pairs: str, force: bool) -> None:
    """Refuse a calibration from so few pairs that chance would decide."""
    if available < MIN_PAIRS and not force:
        raise AnchorFoldError(
            f"calibration needs at least {MIN_PAIRS} pairs, {pairs} gives {available}: use more pairs (--pairs, "
            "--count), or accept these with --force."
        )


def require_writable(target: Path) -> None:
    """A calibration takes long: say at once that it could not be written."""
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise AnchorFoldError(
            f"{target} cannot be written: name another file with --output, and read it with load(..., settings=FILE)."
        )


def show(calibration: Calibration, family: str, pairs: str) -> None:
    """The joint candidates, one per depth, with the paper's figures for the same backbone and pairs."""
    from anchorfold.evaluation.validation import calibration_table

    shown = calibration_table(calibration, family, pairs)
    table([(h, "right" if i else "left") for i, h in enumerate(shown.heads)], shown.lines, shown.title)
    first, last = calibration.settings.sap_window
    out.print(f"SAP's own rule chooses layers {first}-{last}.")


def verdict(calibration: Calibration) -> None:
    """Whether central tokens make better anchors than random ones here."""
    gain, error = calibration.advantage
    chance = fmean(calibration.random)
    figures = f"{gain:+.2f} +- {error:.2f} points against random anchors ({chance:.2f} %)"
    if calibration.suits:
        out.print(f"AnchorFold suits this backbone: {figures}.")
    elif calibration.suits is None:
        pairs = len(calibration.random)
        out.print(f"{pairs} pairs do not tell whether AnchorFold suits this backbone: {figures}. Give more of them.")
    else:
        out.print(
            f"AnchorFold does not suit this backbone: {figures}. Its attention gathers where the content is not: "
            "choose another method (--compare)."
        )


def show_comparison(compared: list[Suitability]) -> None:
    """Methods by what they keep, at each ratio."""
    for ratio in dict.fromkeys(s.ratio for s in compared):
        ranked = sorted((s for s in compared if s.ratio == ratio), key=lambda s: -s.retention)
        rows = [
            (s.method, f"{s.retention:.2f}",
             "" if s.method == "anchorfold" else f"{s.lead:+.2f} ({s.low:+.2f} to {s.high:+.2f})")
            for s in ranked
        ]  # fmt: skip
        columns = [("method", "left"), ("score retained, %", "right"), ("AnchorFold's lead, 95 %", "right")]
        table(columns, rows, f"ratio {ratio:g}")
        out.print(f"{ranked[0].method} retains the most score at ratio {ratio:g}.\n")
