"""Attention capture: compute signals while a transformers model runs with its own attention kernels.

    with AttentionTap(model, attention_modules, signals) as tap:
        tap.set_visual_tokens(visual, attention_mask)
        model(**inputs)
    tap.pages[0][PropagatedAttention(layer=25, steps=6)]      # (N,)

Inside the block, transformers' attention functions are wrapped under their own names. They run as before; for layers
named by a signal, queries and keys are also reduced to one vector per page immediately. Names and kernels stay the
same, because transformers selects kernels and masks by name. The block holds the model's lock: other threads that
capture attention of the same model wait, and passes of threads without the lock are not captured.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig

from anchorfold.attention.capture_time import timed
from anchorfold.attention.graphs import LayerView
from anchorfold.attention.model_lock import current_thread_only, model_lock
from anchorfold.attention.signals import PropagatedAttention, Signal
from anchorfold.attention.vision_tower import TowerScores, find_tower, image_views
from anchorfold.errors import UnreadableAttentionError

_OBSERVERS = "_anchorfold_observers"

# Called with queries, keys, values, the mask and the attention function's other arguments.
Observer = Callable[[Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]], None]

_open_taps: Counter[str] = Counter()  # per wrapped attention function
_wrapping = threading.Lock()


class AttentionTap:
    """Context manager that captures signals from a model's attention layers.

    Args:
        model: the model to run inside the block.
        layers: attention modules of its language layers, in order.
        signals: values to compute; other layers do no extra work. Layers of signals of the vision tower are numbers of
            its blocks with full attention.
        gradients: whether gradients flow through the captured values, for training.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[nn.Module], signals: Iterable[Signal], gradients: bool = False
    ) -> None:
        self.model, self.layers, self.gradients = model, list(layers), gradients
        signals = list(dict.fromkeys(signals))
        in_tower = [signal for signal in signals if isinstance(signal, PropagatedAttention) and signal.tower]
        self._tower = _tower_scores(model, in_tower)
        in_layers = [signal for signal in signals if signal not in in_tower]
        self._by_layer = _group_by_layer(in_layers, len(self.layers), "layers")
        self._pages: list[dict[Signal, Tensor]] = []
        self._visual: list[Tensor] | None = None
        self._valid: list[Tensor] = []
        self._observers = self._language_observers() | self._tower_observers()
        self._captured: set[nn.Module] = set()
        self._open = ExitStack()

    def set_visual_tokens(self, visual: Tensor, attention_mask: Tensor | None = None) -> None:
        """Set the visual tokens of the next forward pass.

        Args:
            visual: `(B, T)` mask of visual tokens.
            attention_mask: `(B, T)`, 0 at padding on either side; None without padding.
        """
        valid = torch.ones_like(visual) if attention_mask is None else attention_mask.bool()
        self._valid = [row.nonzero().flatten() for row in valid]
        # Positions among the page's own tokens: padding is removed before signals are computed.
        self._visual = [v[keep].nonzero().flatten() for v, keep in zip(visual.bool(), self._valid, strict=True)]
        self._pages = [{} for _ in self._visual]
        self._captured = set()
        if self._tower is not None:
            self._tower.reset()

    @property
    def pages(self) -> list[dict[Signal, Tensor]]:
        """Signals `(N,)` of the visual tokens of each page in the last forward pass."""
        if self._tower is not None and self._tower.complete and self._visual is not None:
            scores = self._tower.tokens([len(visual) for visual in self._visual])
            for page, values in zip(self._pages, scores, strict=True):
                page.update(values)
            self._tower.reset()
        return self._pages

    def __enter__(self) -> Self:
        for module in self._observers:
            _require_readable(module)
        if self._observers:
            self._open.enter_context(_observed(self.model, self._observers))
        if self._tower is not None:
            self._open.enter_context(self._tower.reading_shapes())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        missing = self._observers.keys() - self._captured
        if kind is None and self._visual is not None and missing:
            raise UnreadableAttentionError(
                f"cannot capture the attention of {type(self.model).__name__}: {len(missing)} of its attention modules "
                "do not use transformers' AttentionInterface."
            )

    def _language_observers(self) -> dict[nn.Module, Observer]:
        return {self.layers[number]: self._observer(number, signals) for number, signals in self._by_layer.items()}

    def _observer(self, number: int, signals: list[Signal]) -> Observer:
        module = self.layers[number]
        kinds = {type(s): [r for r in signals if type(r) is type(s)] for s in signals}

        @timed
        @torch.enable_grad() if self.gradients else torch.no_grad()  # type: ignore[untyped-decorator]
        def observe(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
            visual_tokens = self._require_visual_tokens()
            self._captured.add(module)
            causal = kwargs.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            for b, (visual, valid) in enumerate(zip(visual_tokens, self._valid, strict=True)):
                if not len(visual):
                    continue
                allowed = _allowed(mask, b, valid, bool(causal), kwargs.get("sliding_window"))
                query_b, key_b, value_b = (t[b].index_select(1, valid) for t in (query, key, value))
                view = LayerView(query_b, key_b, scaling, visual, allowed, value_b)
                for kind, requests in kinds.items():
                    self._pages[b].update(kind.measure(requests, view))  # type: ignore[arg-type]

        return observe

    def _tower_observers(self) -> dict[nn.Module, Observer]:
        if self._tower is None:
            return {}
        scores = self._tower

        def observer(number: int) -> Observer:
            @timed
            @torch.no_grad()
            def observe(query: Tensor, key: Tensor, _: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
                self._require_visual_tokens()
                self._captured.add(scores.tower.blocks[number])
                scores.measure(number, image_views(query, key, mask, kwargs))

            return observe

        return {scores.tower.blocks[number]: observer(number) for number in {s.layer for s in scores.signals}}

    def _require_visual_tokens(self) -> list[Tensor]:
        if self._visual is None:
            raise UnreadableAttentionError("call set_visual_tokens() before the model runs.")
        return self._visual


def _group_by_layer(signals: Sequence[Signal], layers: int, kind: str) -> dict[int, list[Signal]]:
    """Group signals by layer; raise if a layer does not exist."""
    groups: dict[int, list[Signal]] = {}
    for signal in signals:
        if not 0 <= signal.layer < layers:
            raise UnreadableAttentionError(f"{signal} is out of range: the model has {layers} {kind}.")
        groups.setdefault(signal.layer, []).append(signal)
    return groups


def _tower_scores(model: nn.Module, signals: Sequence[PropagatedAttention]) -> TowerScores | None:
    """Return the collector of signals of the vision tower; None without signals."""
    if not signals:
        return None
    tower = find_tower(model)
    if tower is None:
        raise UnreadableAttentionError(f"{type(model).__name__} has no vision tower: choose another graph.")
    _group_by_layer(signals, len(tower.blocks), "blocks with full attention in its vision tower")
    return TowerScores(tower, signals)


def find_attention(model: nn.Module, run: Callable[[], object], tokens: int) -> list[nn.Module]:
    """Return the attention modules that process sequences of `tokens` tokens when `run` calls the model, in order."""
    modules: dict[nn.Module, None] = {}

    def observer(module: nn.Module) -> Observer:
        return lambda query, *_: modules.setdefault(module) if query.shape[2] == tokens else None

    with _observed(model, {module: observer(module) for module in model.modules()}):
        run()
    return list(modules)


class _ObservedAttention:
    """An attention function that passes queries, keys and mask to the module's observers before it runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        for observe in module.__dict__.get(_OBSERVERS, ()):
            observe(query, key, value, attention_mask, kwargs)
        return self.function(module, query, key, value, attention_mask, **kwargs)


@contextmanager
def _wrapped(implementation: str) -> Iterator[None]:
    """Wrap transformers' attention function of that name inside the block, so that it calls the modules' observers."""
    with _wrapping:
        if not _open_taps[implementation]:
            AttentionInterface.register(implementation, _ObservedAttention(AttentionInterface()[implementation]))
        _open_taps[implementation] += 1
    try:
        yield
    finally:
        with _wrapping:
            _open_taps[implementation] -= 1
            wrapper = AttentionInterface()[implementation]
            if not _open_taps[implementation] and isinstance(wrapper, _ObservedAttention):
                AttentionInterface.register(implementation, wrapper.function)


@contextmanager
def _observed(model: nn.Module, observers: Mapping[nn.Module, Observer]) -> Iterator[None]:
    """Call observers of the model's attention modules inside the block."""
    with model_lock(model), ExitStack() as undo:
        configs = _configs(model)
        for config in configs:
            # Eager attention is a private function of each model; its fast equivalent is scaled-dot-product attention.
            if config._attn_implementation in (None, "eager"):
                undo.callback(setattr, config, "_attn_implementation_internal", config._attn_implementation)
                config._attn_implementation_internal = "sdpa"
        for implementation in {config._attn_implementation for config in configs} & AttentionInterface().keys():
            undo.enter_context(_wrapped(implementation))
        for module, observe in observers.items():
            before = module.__dict__.get(_OBSERVERS, ())
            undo.callback(setattr, module, _OBSERVERS, before) if before else undo.callback(delattr, module, _OBSERVERS)
            setattr(module, _OBSERVERS, (*before, current_thread_only(observe)))
        yield


def _configs(model: nn.Module) -> list[PretrainedConfig]:
    """Return every configuration object in the model: attention and masks may read different copies."""
    configs: dict[int, PretrainedConfig] = {}
    stack: list[object] = [getattr(module, "config", None) for module in model.modules()]
    while stack:
        config = stack.pop()
        if isinstance(config, PretrainedConfig) and id(config) not in configs:
            configs[id(config)] = config
            stack += [getattr(config, name, None) for name in config.sub_configs]
    return list(configs.values())


def _require_readable(module: nn.Module) -> None:
    """Reject attention whose masks are not tensors (flex attention) or that transformers does not register."""
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    registered = implementation in (None, "eager") or implementation in AttentionInterface()
    if not registered or "flex" in str(implementation):
        raise UnreadableAttentionError(
            f"cannot capture attention of the implementation {implementation!r}: load the model with 'sdpa'."
        )


def _allowed(mask: Tensor | None, b: int, valid: Tensor, causal: bool, window: int | None) -> Tensor | None:
    """Return the mask `(1 or H, T, T)` among a page's own tokens, or None without restrictions.

    FlashAttention's masks contain padding only, which is already removed; other restrictions are arguments of the
    kernel. The same holds where scaled-dot-product attention receives no mask.
    """
    if mask is None or mask.ndim == 2:
        n = len(valid)
        if not causal and (window is None or n <= window):
            return None
        distance = torch.arange(n, device=valid.device)[:, None] - torch.arange(n, device=valid.device)
        allowed = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        return (allowed if window is None else allowed & (distance.abs() < window))[None]
    page = mask[min(b, len(mask) - 1)].index_select(-1, valid)
    if page.shape[-2] > 1:
        page = page.index_select(-2, valid)
    unrestricted = page.all() if page.dtype == torch.bool else (page == 0).all()
    return None if bool(unrestricted) else page.expand(-1, len(valid), -1)
