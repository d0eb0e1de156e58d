"""Which compressor keeps the most score on a backbone, before indexing a million pages with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor

from anchorfold.backbones.base import Retriever
from anchorfold.compressors import AnchorFold, FullIndex, compressor_names, wanted_signals
from anchorfold.evaluation.measure import compare
from anchorfold.evaluation.methods import Method
from anchorfold.evaluation.pairs import Pair
from anchorfold.page import PageState
from anchorfold.scoring import maxsim, score_retention


@dataclass(frozen=True)
class Kept:
    """One method at one ratio: mean score retention in percent, and AnchorFold's lead over it with a 95 % interval."""

    method: str
    ratio: float
    retention: float
    lead: float
    low: float
    high: float


def compare_on_pairs(
    model: Retriever, pairs: Iterable[Pair], ratios: Sequence[float], names: Sequence[str] | None = None
) -> list[Kept]:
    """Score retention on the same pairs, of every training-free method unless some are named; the first is compared.

    What must be calibrated, is on these pages.
    """
    others = [n for n in compressor_names(training_free=True) if n not in (AnchorFold.name, FullIndex.name)]
    names = names or [AnchorFold.name, *others, "random-anchors"]
    methods = [Method(name, ratio=ratio) for ratio in ratios for name in names]
    made = {m.label: m.make() for m in methods}
    signals = wanted_signals(made.values(), model.settings)
    waiting = [c for c in made.values() if not c.ready]
    states: list[tuple[Tensor, PageState]] = []
    for text, image in pairs:
        (state,) = model.page_states([image], signals)
        (query,) = model.encode_queries([text])
        if not len(query) or float(maxsim([query], [state.embeddings.cpu()])) <= 0:
            continue  # what is kept of nothing is not defined
        states.append((query, state))
    for each in waiting:
        each.calibrate([state for _, state in states[: each.calibration_pages]], model.settings)
    values: dict[str, dict[str, float]] = {label: {} for label in made}
    for number, (query, state) in enumerate(states):
        full = model.compress(state, FullIndex())
        for label, each in made.items():
            values[label][str(number)] = score_retention(query, full, model.compress(state, each))
    found = []
    for method in methods:
        ours = values[Method(names[0], ratio=method.ratio).label]
        lead = compare(ours, values[method.label])
        mean = fmean(values[method.label].values())
        found.append(Kept(method.name, method.ratio or 1.0, mean, lead["difference"], lead["low"], lead["high"]))
    return found
