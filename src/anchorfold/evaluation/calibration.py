"""Label-free calibration (appendix D of the paper): which layers to listen to, and how deep to propagate.

The rules are pure functions. Profiles and values are score retentions in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import InDegree, Propagated, Signal
from anchorfold.backbones.base import PageImage, Retriever
from anchorfold.compressors import SAP, AnchorFold, Compressor
from anchorfold.errors import AnchorFoldError
from anchorfold.page import PageState
from anchorfold.scoring import maxsim, retention

DEPTHS = (2, 3, 4, 6, 8, 10, 12)
CALIBRATION_RATIO = 0.2
CALIBRATION_FILE = "calibration.json"


def choose_window(profile: Sequence[float], rho: float = 0.2) -> tuple[int, int]:
    """First and last layer, inclusive: `ceil(rho L)` layers right before the trailing run below the median.

    Args:
        profile: mean score retention of each single layer.
        rho: the window's width relative to the depth.

    Where no trailing layer lies below the median, the window is the last layers.

    >>> choose_window([80, 90, 95, 96, 97, 85, 70, 60, 94, 50])
    (7, 8)
    """
    if not 0 < rho <= 1:
        raise ValueError(f"rho must lie above 0 and at most at 1, got {rho!r}.")
    start, width = suffix_start(profile), math.ceil(rho * len(profile))
    return max(0, start - width), start - 1


def suffix_start(profile: Sequence[float]) -> int:
    """Where the longest trailing run of layers below the median of all begins; the number of layers if there is none.

    >>> suffix_start([5, 5, 5, 1, 1])
    3
    """
    values = [float(v) for v in profile]
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("a profile needs one finite value per layer.")
    middle, start = median(values), len(values)
    while start > 0 and values[start - 1] < middle:
        start -= 1
    return start


def choose_depth(values: Mapping[int, Sequence[float] | Tensor]) -> int:
    """The smallest K whose mean paired gap to the best one is within one standard error of the gaps.

    Args:
        values: for each K the score retention of every calibration pair, in the same order.

    >>> choose_depth({1: [90.0, 91.0], 2: [95.0, 97.0], 6: [96.0, 96.0]})
    2
    """
    per_pair = {int(k): torch.as_tensor(v, dtype=torch.float64) for k, v in values.items()}
    lengths = {len(v) for v in per_pair.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError("every depth needs the values of the same calibration pairs.")
    return next(k for k, (gap, error) in paired_gaps(per_pair).items() if gap <= error)


def paired_gaps(values: Mapping[int, Sequence[float] | Tensor]) -> dict[int, tuple[float, float]]:
    """For each depth, in order, how far it stays behind the best one over the same pairs: mean and standard error."""
    per_pair = {int(k): torch.as_tensor(v, dtype=torch.float64) for k, v in sorted(values.items())}
    best = max(per_pair, key=lambda k: float(per_pair[k].mean()))
    return {k: mean_and_error(per_pair[best] - v) for k, v in per_pair.items()}


def mean_and_error(values: Sequence[float] | Tensor) -> tuple[float, float]:
    """The mean of some values, and its standard error."""
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) / math.sqrt(len(tensor)) if len(tensor) > 1 else 0.0


@dataclass(frozen=True)
class Calibration:
    """What a calibration chose and saw.

    `profiles[K]` mean retention of each single layer, `sap_profile` the same for SAP; `windows[K]` the candidate
    window of each depth and `values[K]` its retention for every pair; `random` that of the chosen window with random
    anchors, all else unchanged (the ablation of the same name).
    """

    settings: LayerSettings
    profiles: dict[int, list[float]]
    sap_profile: list[float]
    windows: dict[int, tuple[int, int]]
    values: dict[int, list[float]]
    random: list[float]

    @property
    def advantage(self) -> tuple[float, float]:
        """Mean gain over random anchors in points of retention, and its standard error over the pairs."""
        return mean_and_error(torch.tensor(self.values[self.settings.steps]) - torch.tensor(self.random))

    @property
    def suits(self) -> bool | None:
        """Whether central tokens are better anchors than random ones here; None if two standard errors hide it."""
        gain, error = self.advantage
        return None if abs(gain) <= 2 * error else gain > 0

    def as_json(self) -> dict[str, Any]:
        """All of it in plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """From what `as_json` and JSON made of one."""
        settings = LayerSettings.from_dict(data["settings"])
        profiles, windows, values = (
            {int(k): v for k, v in data[name].items()} for name in ("profiles", "windows", "values")
        )
        spans = {k: (first, last) for k, (first, last) in windows.items()}
        return cls(settings, profiles, data["sap_profile"], spans, values, data["random"])


class CalibrationPair:
    """A query and a page before compression, which any compressor can be tried on."""

    def __init__(self, query: Tensor, page: PageState, settings: LayerSettings) -> None:
        self.query, self.page, self.settings = query.to(page.hidden.device), page, settings
        self.full = maxsim([self.query], [page.embeddings])[0, 0]

    def retention(self, compressor: Compressor) -> float:
        """Score retention in percent."""
        small = compressor.compress(self.page, self.settings)
        return float(retention(self.full, maxsim([self.query], [small])[0, 0]))

    def folded(self, window: tuple[int, int], steps: int, **options: Any) -> float:
        """Of AnchorFold at the ratio of the calibration."""
        return self.retention(AnchorFold(CALIBRATION_RATIO, window=window, steps=steps, **options))

    def moved(self, device: torch.device | str) -> CalibrationPair:
        """The same on another device: hundreds of them have room in main memory only."""
        signals = {signal: values.to(device) for signal, values in self.page.signals.items()}
        page = PageState(self.page.hidden.to(device), self.page.project, signals, self.page.grid)
        return CalibrationPair(self.query, page, self.settings)


def read_pairs(
    model: Retriever, pairs: Iterable[tuple[str, PageImage]], signals: Sequence[Signal]
) -> Iterator[CalibrationPair]:
    """Encode pairs, on the model's device, in retrieval space; those whose full page scores nothing are left out."""
    for text, image in pairs:
        (query,) = model.encode_queries([text])
        (state,) = model.page_states([image], signals)
        projected = model.project(state.hidden.float())
        if projected.numel() * projected.element_size() < state.hidden.numel() * state.hidden.element_size():
            # The projection is affine and a group's weights sum to 1: folding projections is folding hidden states.
            state = PageState(projected, lambda z: z, state.signals, state.grid)
        pair = CalibrationPair(query, state, model.settings)
        if len(query) and float(pair.full) > 0:
            yield pair


@torch.no_grad()
def calibrate(
    model: Retriever, pairs: Iterable[tuple[str, PageImage]], depths: Sequence[int] = DEPTHS, rho: float = 0.2
) -> Calibration:
    """Choose a backbone's window and depth from query-page pairs, by score retention alone.

    One forward pass a page serves all layers and depths. The paper uses 500 pairs.
    """
    layers = range(len(model.attention_layers))
    signals = [Propagated(i, k) for i in layers for k in depths] + [InDegree(i) for i in layers]
    singles: dict[int, list[list[float]]] = {k: [] for k in depths}
    pruned: list[list[float]] = []
    stored: list[CalibrationPair] = []
    for pair in read_pairs(model, pairs, signals):
        for k in depths:
            singles[k].append([pair.folded((i, i), k) for i in layers])
        pruned.append([pair.retention(SAP(CALIBRATION_RATIO, window=(i, i))) for i in layers])
        stored.append(pair.moved("cpu"))
    if not stored:
        raise AnchorFoldError("calibration needs query-page pairs, about 500.")
    profiles = {k: [mean(column) for column in zip(*rows, strict=True)] for k, rows in singles.items()}
    sap_profile = [mean(column) for column in zip(*pruned, strict=True)]
    windows = {k: choose_window(profiles[k], rho) for k in depths}
    joint = [[on_device.folded(windows[k], k) for k in depths] for on_device in (p.moved(model.device) for p in stored)]
    values = {k: [row[i] for row in joint] for i, k in enumerate(depths)}
    depth = choose_depth(values)
    settings = LayerSettings(
        windows[depth], choose_window(sap_profile, rho), len(layers), depth, source="calibration",
        universal=model.settings.universal,
    )  # fmt: skip
    chance = [pair.moved(model.device).folded(windows[depth], depth, anchors="random") for pair in stored]
    return Calibration(settings, profiles, sap_profile, windows, values, chance)


@torch.no_grad()
def window_retentions(
    model: Retriever, pairs: Iterable[tuple[str, PageImage]], candidates: Sequence[tuple[tuple[int, int], int]]
) -> list[float]:
    """Mean score retention in percent of each `(window, depth)` over the same pairs (appendix D's validation)."""
    signals = list(dict.fromkeys(Propagated(i, k) for (first, last), k in candidates for i in range(first, last + 1)))
    values = [[pair.folded(window, k) for window, k in candidates] for pair in read_pairs(model, pairs, signals)]
    if not values:
        raise AnchorFoldError("a window's retention needs query-page pairs.")
    return [mean(column) for column in zip(*values, strict=True)]
