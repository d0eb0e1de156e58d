"""Label-free calibration (appendix D of the paper): which layers to listen to, and how deep to propagate.

The rules are pure functions. Profiles and values are score retentions in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import torch
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import InDegree, Propagated, Signal
from anchorfold.backbones.base import PageImage, Retriever
from anchorfold.budget import vector_budget
from anchorfold.compressors.anchor_fold import random_tokens
from anchorfold.fold import fold, fold_onto, top_tokens
from anchorfold.scoring import maxsim, score_retention

__all__ = ["Calibration", "calibrate", "choose_depth", "choose_window", "score_retention"]

DEPTHS = (2, 3, 4, 6, 8, 10, 12)
CALIBRATION_RATIO = 0.2


def choose_window(profile: Sequence[float], rho: float = 0.2) -> tuple[int, int]:
    """First and last layer, inclusive: `ceil(rho L)` layers right before the trailing run below the median.

    Args:
        profile: mean score retention of each single layer.
        rho: the window's width relative to the depth.

    Where no trailing layer lies below the median, the window is the last layers.

    >>> choose_window([80, 90, 95, 96, 97, 85, 70, 60, 94, 50])
    (7, 8)
    """
    values = [float(v) for v in profile]
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("a profile needs one finite value per layer.")
    if not 0 < rho <= 1:
        raise ValueError(f"rho must lie above 0 and at most at 1, got {rho!r}.")
    middle, start = median(values), len(values)
    while start > 0 and values[start - 1] < middle:
        start -= 1
    width = math.ceil(rho * len(values))
    return max(0, start - width), start - 1


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
    best = max(sorted(per_pair), key=lambda k: float(per_pair[k].mean()))
    for k in sorted(per_pair):
        gap = per_pair[best] - per_pair[k]
        error = float(gap.std()) / math.sqrt(len(gap)) if len(gap) > 1 else 0.0
        if float(gap.mean()) <= error:
            return k
    raise AssertionError("the best depth is always eligible")


@dataclass(frozen=True)
class Calibration:
    """What a calibration found and saw.

    `profiles[K]` mean retention of each single layer, `sap_profile` the same for SAP; `windows[K]` the candidate
    window of each depth and `values[K]` its retention for every pair; `random` that of folding onto random anchors.
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
        gain = torch.tensor(self.values[self.settings.steps]) - torch.tensor(self.random)
        return float(gain.mean()), float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0

    @property
    def suits(self) -> bool:
        """Whether central tokens are better anchors than random ones here, by two standard errors."""
        gain, error = self.advantage
        return gain > 2 * error


@dataclass(frozen=True)
class _Pair:
    """A page before compression, in projection space, with the scores of every layer and depth."""

    query: Tensor
    projected: Tensor
    full: float
    signals: dict[Signal, Tensor]

    def retention(self, small: Tensor) -> float:
        return 100 * float(maxsim([self.query], [small])) / self.full

    def folded(self, layers: Iterable[int], depth: int) -> float:
        alpha = torch.stack([self.signals[Propagated(layer, depth)] for layer in layers]).mean(0)
        m = vector_budget(len(alpha), ratio=CALIBRATION_RATIO)
        # The projection is affine and a group's weights sum to 1: folding projections is folding hidden states.
        return self.retention(fold(self.projected, alpha, m).vectors)

    def at_random(self, number: int) -> float:
        m = vector_budget(len(self.projected), ratio=CALIBRATION_RATIO)
        anchors = random_tokens(len(self.projected), m, number)
        vectors = torch.nn.functional.normalize(self.projected, dim=-1)
        alpha = torch.ones(len(vectors))
        return self.retention(fold_onto(self.projected, vectors, anchors, alpha, lambda z: z).vectors)

    def pruned(self, layer: int) -> float:
        score = self.signals[InDegree(layer)]
        kept = top_tokens(score, vector_budget(len(score), ratio=CALIBRATION_RATIO))
        return self.retention(torch.nn.functional.normalize(self.projected[kept], dim=-1))


@torch.no_grad()
def calibrate(
    model: Retriever, pairs: Iterable[tuple[str, PageImage]], depths: Sequence[int] = DEPTHS, rho: float = 0.2
) -> Calibration:
    """Find a backbone's window and depth from query-page pairs, by score retention alone.

    One forward pass a page serves all layers and depths. The paper uses 500 pairs.
    """
    layers = range(len(model.attention_layers))
    wanted = [Propagated(i, k) for i in layers for k in depths] + [InDegree(i) for i in layers]
    seen: list[_Pair] = []
    for text, image in pairs:
        (query,) = model.encode_queries([text])
        (state,) = model.page_states([image], wanted)
        full = float(maxsim([query], [state.embeddings.cpu()])) if len(query) else 0.0
        if full > 0:
            projected = model.project(state.hidden.float()).cpu()
            seen.append(_Pair(query, projected, full, {s: v.cpu() for s, v in state.signals.items()}))
    if not seen:
        raise ValueError("calibration needs query-page pairs, about 500.")
    profiles = {k: [mean(p.folded([i], k) for p in seen) for i in layers] for k in depths}
    sap_profile = [mean(p.pruned(i) for p in seen) for i in layers]
    windows = {k: choose_window(profiles[k], rho) for k in depths}
    values = {k: [p.folded(range(windows[k][0], windows[k][1] + 1), k) for p in seen] for k in depths}
    depth = choose_depth(values)
    found = LayerSettings(windows[depth], choose_window(sap_profile, rho), len(layers), depth, source="calibration")
    chance = [p.at_random(i) for i, p in enumerate(seen)]
    return Calibration(found, profiles, sap_profile, windows, values, chance)
