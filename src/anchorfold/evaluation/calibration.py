"""Label-free calibration (appendix D of the paper): layer window, propagation depth, and comparison of methods.

Profiles and values are score retentions in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from statistics import fmean, mean, median
from typing import Any

import torch
from torch import Tensor

from anchorfold.attention.layer_settings import VISION_TOWER, LayerSettings
from anchorfold.attention.signals import InDegree, PropagatedAttention, Signal
from anchorfold.backbones.base import BackboneEncoder, PageImage
from anchorfold.compressors import SAP, AnchorFold, Compressor, FullIndex, compressor_names, required_signals
from anchorfold.core.scoring import maxsim, retention
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.calibration_pairs import Pair
from anchorfold.evaluation.held_out_pages import state_on_cpu
from anchorfold.evaluation.methods import ANCHORFOLD, Method
from anchorfold.evaluation.metrics import paired_difference
from anchorfold.page import PageState

DEPTHS = (2, 3, 4, 6, 8, 10, 12)
CALIBRATION_RATIO = 0.2
CALIBRATION_FILE = "calibration.json"
# Points of score retention over random anchors; below it, capturing attention is not worth its cost.
USEFUL_GAIN = 2.0
PAPER_GRAPH = "attention"
OTHER_GRAPHS = {False: ("symmetric",), True: ("symmetric", "mirrored", "mirrored-symmetric")}  # by causality


def choose_window(profile: Sequence[float], rho: float = 0.2) -> tuple[int, int]:
    """Choose the `ceil(rho L)` layers before the trailing run below the median; first and last layer, inclusive.

    Args:
        profile: mean score retention of each single layer.
        rho: width of the window relative to the number of layers.

    If no trailing layer is below the median, the window ends at the last layer.

    >>> choose_window([80, 90, 95, 96, 97, 85, 70, 60, 94, 50])
    (7, 8)
    """
    if not 0 < rho <= 1:
        raise ValueError(f"rho must be in (0, 1], got {rho!r}.")
    start, width = suffix_start(profile), math.ceil(rho * len(profile))
    return max(0, start - width), start - 1


def suffix_start(profile: Sequence[float]) -> int:
    """Return the start of the longest trailing run of layers below the median, or the number of layers.

    >>> suffix_start([5, 5, 5, 1, 1])
    3
    """
    values = [float(v) for v in profile]
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("a profile must have one finite value per layer.")
    middle, start = median(values), len(values)
    while start > 0 and values[start - 1] < middle:
        start -= 1
    return start


def choose_depth(values: Mapping[int, Sequence[float] | Tensor]) -> int:
    """Choose the smallest K whose mean paired gap to the best K is within one standard error of the gaps.

    Args:
        values: for each K the score retention of every calibration pair, in the same order.

    >>> choose_depth({1: [90.0, 91.0], 2: [95.0, 97.0], 6: [96.0, 96.0]})
    2
    """
    per_pair = {int(k): torch.as_tensor(v, dtype=torch.float64) for k, v in values.items()}
    lengths = {len(v) for v in per_pair.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError("all depths must have values of the same calibration pairs.")
    return next(k for k, (gap, error) in paired_gaps(per_pair).items() if gap <= error)


def paired_gaps(values: Mapping[int, Sequence[float] | Tensor]) -> dict[int, tuple[float, float]]:
    """Return mean and standard error of the paired gap to the best depth, per depth in ascending order."""
    per_pair = {int(k): torch.as_tensor(v, dtype=torch.float64) for k, v in sorted(values.items())}
    best = max(per_pair, key=lambda k: float(per_pair[k].mean()))
    return {k: mean_and_error(per_pair[best] - v) for k, v in per_pair.items()}


def mean_and_error(values: Sequence[float] | Tensor) -> tuple[float, float]:
    """Return the mean and its standard error."""
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) / math.sqrt(len(tensor)) if len(tensor) > 1 else 0.0


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        settings: chosen window and depth.
        profiles: mean retention of each single layer, per depth.
        sap_profile: mean retention of SAP on each single layer.
        windows: candidate window per depth.
        values: retention of every pair with the candidate window, per depth.
        random: retention of every pair with the chosen window and random anchors.
        graphs: retention of every pair with the chosen window and depth, per other graph.
    """

    settings: LayerSettings
    profiles: dict[int, list[float]]
    sap_profile: list[float]
    windows: dict[int, tuple[int, int]]
    values: dict[int, list[float]]
    random: list[float]
    graphs: dict[str, list[float]] = field(default_factory=dict)

    @property
    def advantage(self) -> tuple[float, float]:
        """Mean gain over random anchors in points of score retention, and its standard error."""
        return mean_and_error(torch.tensor(self.values[self.settings.steps]) - torch.tensor(self.random))

    @property
    def is_suitable(self) -> bool | None:
        """Whether central tokens are better anchors than random ones, by two standard errors; None if undecided.

        They are not if the gain is below `USEFUL_GAIN`.
        """
        gain, error = self.advantage
        if gain + 2 * error < USEFUL_GAIN:
            return False
        return True if gain > 2 * error else None

    @property
    def best_graph(self) -> tuple[str, float, float]:
        """The graph that retains the most score, its mean gain over the paper's graph, and the standard error.

        It is the paper's graph unless the gain is more than two standard errors.
        """
        paper = torch.tensor(self.values[self.settings.steps])
        best, gain, error = PAPER_GRAPH, 0.0, 0.0
        for graph, values in self.graphs.items():
            lead, spread = mean_and_error(torch.tensor(values) - paper)
            if lead > max(gain, 2 * spread):
                best, gain, error = graph, lead, spread
        return best, gain, error

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """Restore a calibration from `as_json`."""
        settings = LayerSettings.from_dict(data["settings"])
        profiles, windows, values = (
            {int(k): v for k, v in data[name].items()} for name in ("profiles", "windows", "values")
        )
        spans = {k: (first, last) for k, (first, last) in windows.items()}
        return cls(settings, profiles, data["sap_profile"], spans, values, data["random"], data.get("graphs", {}))


class CalibrationPair:
    """A query and a page before compression."""

    def __init__(self, query: Tensor, page: PageState, settings: LayerSettings) -> None:
        self.query, self.page, self.settings = query.to(page.hidden.device), page, settings
        self.full = maxsim([self.query], [page.embeddings])[0, 0]

    def retention(self, compressor: Compressor) -> float:
        """Return the score retention of a compressor in percent."""
        small = compressor.compress(self.page, self.settings)
        return float(retention(self.full, maxsim([self.query], [small])[0, 0]))

    def fold_retention(self, window: tuple[int, int] | None, steps: int, **options: Any) -> float:
        """Return the score retention of AnchorFold at the calibration ratio."""
        return self.retention(AnchorFold(CALIBRATION_RATIO, window=window, steps=steps, **options))


def encode_pairs(
    model: BackboneEncoder, pairs: Iterable[tuple[str, PageImage]], signals: Sequence[Signal]
) -> Iterator[CalibrationPair]:
    """Encode pairs in retrieval space on the model's device; skip pairs whose full page has no positive score."""
    for text, image in pairs:
        (query,) = model.encode_queries([text])
        (state,) = model.page_states([image], signals)
        projected = model.project(state.hidden.float())
        if projected.numel() * projected.element_size() < state.hidden.numel() * state.hidden.element_size():
            # The projection is affine and a group's weights sum to 1: folding projections is folding hidden states.
            state = PageState(projected, lambda z: z, state.signals, state.grid)
        pair = CalibrationPair(query, state, model.layer_settings)
        if len(query) and float(pair.full) > 0:
            yield pair


@torch.no_grad()
def calibrate(
    model: BackboneEncoder, pairs: Iterable[tuple[str, PageImage]], depths: Sequence[int] = DEPTHS, rho: float = 0.2
) -> Calibration:
    """Choose a backbone's window and depth from query-page pairs, by score retention alone.

    Pages are encoded twice, for single layers and for the candidate windows; only scores are kept. `pairs` is therefore
    a list or a `PairSource`. The paper uses 500 pairs.
    """
    if iter(pairs) is pairs:
        raise ValueError("calibration reads its pairs twice: give a list or a PairSource instead of an iterator.")
    layers = range(len(model.attention_layers))
    signals = [PropagatedAttention(i, k) for i in layers for k in depths] + [InDegree(i) for i in layers]
    singles: dict[int, list[list[float]]] = {k: [] for k in depths}
    pruned: list[list[float]] = []
    for pair in encode_pairs(model, pairs, signals):
        for k in depths:
            singles[k].append([pair.fold_retention((i, i), k) for i in layers])
        pruned.append([pair.retention(SAP(CALIBRATION_RATIO, window=(i, i))) for i in layers])
    if not pruned:
        raise AnchorFoldError("calibration needs query-page pairs, about 500.")
    profiles = {k: [mean(column) for column in zip(*rows, strict=True)] for k, rows in singles.items()}
    sap_profile = [mean(column) for column in zip(*pruned, strict=True)]
    windows = {k: choose_window(profiles[k], rho) for k in depths}
    values: dict[int, list[float]] = {k: [] for k in depths}
    random: dict[int, list[float]] = {k: [] for k in depths}
    others = OTHER_GRAPHS[model.is_causal] + ((VISION_TOWER,) if model.layer_settings.tower else ())
    by_graph: dict[str, dict[int, list[float]]] = {graph: {k: [] for k in depths} for graph in others}
    candidates = [
        AnchorFold(CALIBRATION_RATIO, steps=k, window=_graph_window(graph, windows[k]), graph=graph)
        for graph in (PAPER_GRAPH, *others)
        for k in depths
    ]
    joint = required_signals(candidates, model.layer_settings)
    for pair in encode_pairs(model, pairs, joint):
        for k in depths:
            values[k].append(pair.fold_retention(windows[k], k))
            random[k].append(pair.fold_retention(windows[k], k, anchors="random"))
            for graph, retained in by_graph.items():
                retained[k].append(pair.fold_retention(_graph_window(graph, windows[k]), k, graph=graph))
    depth = choose_depth(values)
    settings = LayerSettings(
        windows[depth], choose_window(sap_profile, rho), len(layers), depth, source="calibration",
        universal=model.layer_settings.universal,
    )  # fmt: skip
    graphs = {graph: retained[depth] for graph, retained in by_graph.items()}
    return Calibration(settings, profiles, sap_profile, windows, values, random[depth], graphs)


def _graph_window(graph: str, window: tuple[int, int]) -> tuple[int, int] | None:
    """Return the window of a graph: the given one in the language layers, the default one in the vision tower."""
    return None if graph == VISION_TOWER else window


@torch.no_grad()
def window_retentions(
    model: BackboneEncoder, pairs: Iterable[tuple[str, PageImage]], candidates: Sequence[tuple[tuple[int, int], int]]
) -> list[float]:
    """Return the mean score retention in percent of each `(window, depth)` over the same pairs (appendix D)."""
    signals = list(
        dict.fromkeys(PropagatedAttention(i, k) for (first, last), k in candidates for i in range(first, last + 1))
    )
    values = [
        [pair.fold_retention(window, k) for window, k in candidates] for pair in encode_pairs(model, pairs, signals)
    ]
    if not values:
        raise AnchorFoldError("a window's retention needs query-page pairs.")
    return [mean(column) for column in zip(*values, strict=True)]


@dataclass(frozen=True)
class MethodComparison:
    """Mean score retention of a method at a ratio in percent, and AnchorFold's lead with its 95 % interval."""

    method: str
    ratio: float
    retention: float
    lead: float
    low: float
    high: float


@torch.no_grad()
def compare_on_pairs(
    model: BackboneEncoder, pairs: Iterable[Pair], ratios: Sequence[float], names: Sequence[str] | None = None
) -> list[MethodComparison]:
    """Compare the score retention of methods on the same pairs: all training-free ones unless some are named.

    Methods that need calibration are calibrated on the first of the same pages; `pairs` is a list or a `PairSource`.
    """
    others = [n for n in compressor_names(training_free=True) if n not in (ANCHORFOLD, FullIndex.name)]
    names = names or [ANCHORFOLD, *others, "random-anchors"]
    methods = [Method(name, ratio=ratio) for ratio in ratios for name in names]
    compressors = {m.label: m.make() for m in methods}
    if waiting := [c for c in compressors.values() if not c.ready]:
        images = (image for _, image in islice(pairs, max(c.calibration_pages for c in waiting)))
        states = model.page_states(images, required_signals(waiting, model.layer_settings))
        pages = [state_on_cpu(state) for state in states]
        for compressor in waiting:
            compressor.calibrate(pages[: compressor.calibration_pages], model.layer_settings)
    values: dict[str, dict[str, float]] = {label: {} for label in compressors}
    signals = required_signals(compressors.values(), model.layer_settings)
    for number, pair in enumerate(encode_pairs(model, pairs, signals)):
        for label, compressor in compressors.items():
            values[label][str(number)] = pair.retention(compressor)
    rows = []
    for method in methods:
        lead = paired_difference(values[Method(names[0], ratio=method.ratio).label], values[method.label])
        mean = fmean(values[method.label].values())
        rows.append(
            MethodComparison(method.name, method.ratio or 1.0, mean, lead["difference"], lead["low"], lead["high"])
        )
    return rows
