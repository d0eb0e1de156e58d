"""Which compressor keeps the most score on a backbone, before indexing a million pages with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from anchorfold.backbones.base import Retriever
from anchorfold.compressors import FullIndex, compressor_names, wanted_signals
from anchorfold.evaluation.calibration import read_pairs
from anchorfold.evaluation.measure import paired_difference
from anchorfold.evaluation.methods import OURS, Method
from anchorfold.evaluation.pairs import Pair


@dataclass(frozen=True)
class Suitability:
    """One method at one ratio: mean score retention in percent, and AnchorFold's lead over it with a 95 % interval."""

    method: str
    ratio: float
    retention: float
    lead: float
    low: float
    high: float


@torch.no_grad()
def compare_on_pairs(
    model: Retriever, pairs: Iterable[Pair], ratios: Sequence[float], names: Sequence[str] | None = None
) -> list[Suitability]:
    """Score retention on the same pairs, of every training-free method unless some are named; the first is compared.

    What must be calibrated, is on these pages.
    """
    others = [n for n in compressor_names(training_free=True) if n not in (OURS, FullIndex.name)]
    names = names or [OURS, *others, "random-anchors"]
    methods = [Method(name, ratio=ratio) for ratio in ratios for name in names]
    compressors = {m.label: m.make() for m in methods}
    stored = [p.moved("cpu") for p in read_pairs(model, pairs, wanted_signals(compressors.values(), model.settings))]
    for compressor in (c for c in compressors.values() if not c.ready):
        compressor.calibrate([pair.page for pair in stored[: compressor.calibration_pages]], model.settings)
    values: dict[str, dict[str, float]] = {label: {} for label in compressors}
    for number, pair in enumerate(p.moved(model.device) for p in stored):
        for label, compressor in compressors.items():
            values[label][str(number)] = pair.retention(compressor)
    rows = []
    for method in methods:
        lead = paired_difference(values[Method(names[0], ratio=method.ratio).label], values[method.label])
        mean = fmean(values[method.label].values())
        rows.append(Suitability(method.name, method.ratio or 1.0, mean, lead["difference"], lead["low"], lead["high"]))
    return rows
