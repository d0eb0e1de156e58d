"""`anchorfold calibrate`: window, depth, and whether the method suits a backbone; no labels needed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from anchorfold.cli.app import app, err, out, quiet_libraries
from anchorfold.cli.options import Bidirectional, Device, TrustRemoteCode, numbers
from anchorfold.cli.printing import table
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anchorfold.evaluation.calibration import Calibration
    from anchorfold.evaluation.pairs import Pair
    from anchorfold.evaluation.suitability import Kept


@app.command("calibrate", rich_help_panel="Science")
def calibrate_command(
    model: Annotated[str, typer.Argument(help="A model name or folder.")] = "nano",
    pairs: Annotated[str, typer.Option(help="A corpus folder (pdfs/, queries.jsonl) or a dataset with query and image.")] = "vidore/colpali_train_set",  # noqa: E501
    count: Annotated[int, typer.Option(help="Pairs to use.", min=2)] = 500,
    seed: Annotated[int, typer.Option(help="Of the choice of pairs.")] = 42,
    compare: Annotated[bool, typer.Option("--compare", help="Run every training-free method on them.")] = False,
    ratios: Annotated[str, typer.Option(help="Ratios to compare at.")] = "0.2,0.1,0.05",
    to: Annotated[Path | None, typer.Option("--to", help="The settings file. Default: where `load` looks for it.")] = None,  # noqa: E501
    figure: Annotated[Path | None, typer.Option(help="Draw the paper's two panels into this file.")] = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Find a backbone's layer window and depth from unlabelled pairs, as the paper's appendix D does.

    Writes a small file where `anchorfold.load` looks for it: beside a folder's weights or adapters, else in your cache.
    With --compare it tells which compressor keeps the most score on this backbone: learn that before you index a
    million pages.

    \b
    Examples
      anchorfold calibrate ./my-model --pairs ./my-corpus
      anchorfold calibrate vidore/colpali-v1.3-hf --compare --figure calibration.png
    """
    from anchorfold.attention.layer_settings import write_settings
    from anchorfold.backbones import load
    from anchorfold.evaluation.calibration import calibrate
    from anchorfold.evaluation.pairs import find_pairs

    quiet_libraries()
    retriever = load(model, device=device, trust_remote_code=trust_remote_code, bidirectional=bidirectional)
    target = to or retriever.calibration_file
    require_writable(target)
    with err.status("reading pairs") as status:

        def counted_pairs() -> Iterator[Pair]:
            for number, pair in enumerate(find_pairs(pairs, retriever.page_pixels, count, seed), 1):
                status.update(f"pair {number} of at most {count}")
                yield pair

        calibration = calibrate(retriever, counted_pairs())
        show(calibration)
        # Learned tokens that the model appends to pages are part of it, and not found by calibrating.
        settings = replace(calibration.settings, universal=retriever.settings.universal)
        if compare:
            from anchorfold.evaluation.suitability import compare_on_pairs

            retriever.settings = settings
            show_comparison(compare_on_pairs(retriever, counted_pairs(), numbers(ratios, float)))
    verdict(calibration)
    write_settings(target, settings)
    found_by = f"load({model!r}, settings={str(to)!r}) reads it" if to else f"load({model!r}) finds it there"
    out.print(f"wrote {target}: {found_by}", markup=False)
    if figure is not None:
        from anchorfold.evaluation.figures.calibration import draw_calibration

        draw_calibration(calibration, figure, retriever.name)
        out.print(f"wrote {figure}", markup=False)


def require_writable(target: Path) -> None:
    """A calibration takes long: say at once that it could not be written."""
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise AnchorFoldError(
            f"{target} cannot be written: name another file with --to, and read it with load(..., settings=FILE)."
        )


def show(calibration: Calibration) -> None:
    """The joint candidates, one a depth."""
    rows = []
    for depth, values in calibration.values.items():
        first, last = calibration.windows[depth]
        mean = fmean(values)
        error = (sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1) / len(values)) ** 0.5
        chosen = "chosen" if depth == calibration.settings.steps else ""
        rows.append((depth, f"{first}-{last}", f"{mean:.3f} +- {error:.3f}", chosen))
    title = f"score kept at ratio 0.2, {len(calibration.random)} pairs"
    table([("K", "right"), ("layers", "right"), ("kept, %", "right"), ("", "left")], rows, title)
    first, last = calibration.settings.sap_window
    out.print(f"SAP's own rule chooses layers {first}-{last}.")


def verdict(calibration: Calibration) -> None:
    """Whether central tokens make better anchors than random ones here."""
    gain, error = calibration.advantage
    kept = fmean(calibration.random)
    if calibration.suits:
        out.print(
            f"AnchorFold suits this backbone: {gain:+.2f} +- {error:.2f} points over random anchors ({kept:.2f} %)."
        )
    else:
        out.print(
            f"AnchorFold does not suit this backbone: {gain:+.2f} +- {error:.2f} points against random anchors "
            f"({kept:.2f} %). Its attention gathers where the content is not: choose another method (--compare)."
        )


def show_comparison(retentions: list[Kept]) -> None:
    """Methods by what they keep, at each ratio."""
    for ratio in dict.fromkeys(k.ratio for k in retentions):
        methods = sorted((k for k in retentions if k.ratio == ratio), key=lambda k: -k.retention)
        rows = [(k.method, f"{k.retention:.2f}", "" if k.method == "anchorfold" else f"{k.lead:+.2f} ({k.low:+.2f} to {k.high:+.2f})") for k in methods]  # fmt: skip  # noqa: E501
        table(
            [("method", "left"), ("score kept, %", "right"), ("AnchorFold's lead, 95 %", "right")],
            rows,
            f"ratio {ratio:g}",
        )
        out.print(f"{methods[0].method} keeps the most score at ratio {ratio:g}.\n")
