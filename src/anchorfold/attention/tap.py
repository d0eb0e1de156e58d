"""The attention tap: read what compressors need while a transformers model runs on its own fast attention.

    with AttentionTap(model, attention_modules, signals) as tap:
        tap.look_at(visual, attention_mask)
        model(**inputs)
    tap.pages[0][Propagated(layer=25, steps=6)]      # (N,)

Inside the block, transformers' attention functions are wrapped under their own names: they run as before, and for the
layers that a signal names they also hand over queries and keys, which are reduced to one vector a page at once. No
layer leaves its kernel, and no name changes: transformers chooses kernels and masks by it. The block holds the model's
lock: other threads that listen to the same model wait, and what they run meanwhile is not heard.
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

from anchorfold.attention.listening_time import listening
from anchorfold.attention.model_lock import model_lock, own_thread
from anchorfold.attention.signals import LayerView, Signal
from anchorfold.errors import BrokenModelError

_HOOK = "_anchorfold_observers"

# Called with queries, keys, the mask and the attention function's other arguments.
Observer = Callable[[Tensor, Tensor, Tensor | None, dict[str, Any]], None]

_open_taps: Counter[str] = Counter()  # of each wrapped attention function
_wrapping = threading.Lock()


class UnreadableAttentionError(BrokenModelError):
    """What was asked of the model's attention cannot be read."""


@contextmanager
def _wrapped(implementation: str) -> Iterator[None]:
    """Inside the block, transformers' attention function of that name calls the observers of modules that have any."""
    with _wrapping:
        if not _open_taps[implementation]:
            AttentionInterface.register(implementation, _Observed(AttentionInterface()[implementation]))
        _open_taps[implementation] += 1
    try:
        yield
    finally:
        with _wrapping:
            _open_taps[implementation] -= 1
            wrapper = AttentionInterface()[implementation]
            if not _open_taps[implementation] and isinstance(wrapper, _Observed):
                AttentionInterface.register(implementation, wrapper.function)


class _Observed:
    """An attention function that shows queries, keys and mask to the module's observers before it runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        for observe in module.__dict__.get(_HOOK, ()):
            observe(query, key, attention_mask, kwargs)
        return self.function(module, query, key, value, attention_mask, **kwargs)


def _configs(model: nn.Module) -> list[PretrainedConfig]:
    """Every configuration object in the model: attention and masks may read different copies."""
    configs: dict[int, PretrainedConfig] = {}

    def visit(config: object) -> None:
        if isinstance(config, PretrainedConfig) and id(config) not in configs:
            configs[id(config)] = config
            for name in config.sub_configs:
                visit(getattr(config, name, None))

    for module in model.modules():
        visit(getattr(module, "config", None))
    return list(configs.values())


@contextmanager
def _observed(model: nn.Module, observers: Mapping[nn.Module, Observer]) -> Iterator[None]:
    """Inside the block, these attention modules of the model also call their observers."""
    with model_lock(model), ExitStack() as undo:
        configs = _configs(model)
        for config in configs:
            # Eager attention is a function private to each model; its fast equal is scaled-dot-product attention.
            if config._attn_implementation in (None, "eager"):
                undo.callback(setattr, config, "_attn_implementation_internal", config._attn_implementation)
                config._attn_implementation_internal = "sdpa"
        for implementation in {config._attn_implementation for config in configs} & AttentionInterface().keys():
            undo.enter_context(_wrapped(implementation))
        for module, observe in observers.items():
            before = module.__dict__.get(_HOOK, ())
            undo.callback(setattr, module, _HOOK, before) if before else undo.callback(delattr, module, _HOOK)
            setattr(module, _HOOK, (*before, own_thread(observe)))
        yield


def _require_readable(module: nn.Module) -> None:
    """Flex attention's masks are no tensors; everything else that transformers knows can be read."""
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    known = implementation in (None, "eager") or implementation in AttentionInterface()
    if not known or "flex" in str(implementation):
        raise UnreadableAttentionError(
            f"attention of the implementation {implementation!r} cannot be read: load the model with 'sdpa'."
        )


class AttentionTap:
    """Context manager that collects signals from a model's attention layers.

    Args:
        model: the model to run inside the block.
        layers: its language layers' attention modules, in order.
        signals: what to collect; only the layers that they name do any extra work.
        gradients: let gradients flow through what is collected, to train with it.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[nn.Module], signals: Iterable[Signal], gradients: bool = False
    ) -> None:
        self.model, self.layers, self.gradients = model, list(layers), gradients
        self.signals_by_layer: dict[int, list[Signal]] = {}
        for signal in dict.fromkeys(signals):
            if not 0 <= signal.layer < len(self.layers):
                raise UnreadableAttentionError(
                    f"{signal} names a layer that does not exist: the model has {len(self.layers)}."
                )
            self.signals_by_layer.setdefault(signal.layer, []).append(signal)
        self.pages: list[dict[Signal, Tensor]] = []
        self._visual: list[Tensor] | None = None
        self._valid: list[Tensor] = []
        self._seen: set[int] = set()
        self._open = ExitStack()

    def look_at(self, visual: Tensor, attention_mask: Tensor | None = None) -> None:
        """Say where the visual tokens are, before the layers run.

        Args:
            visual: `(B, T)` mask of visual tokens.
            attention_mask: `(B, T)`, 0 at padding on either side; None if there is none.
        """
        valid = torch.ones_like(visual) if attention_mask is None else attention_mask.bool()
        self._valid = [row.nonzero().flatten() for row in valid]
        # Positions among the page's own tokens: padding is cut away before anything is measured.
        self._visual = [v[keep].nonzero().flatten() for v, keep in zip(visual.bool(), self._valid, strict=True)]
        self.pages = [{} for _ in self._visual]
        self._seen = set()

    def __enter__(self) -> Self:
        if self.signals_by_layer:
            observers = {self.layers[number]: self._observer(number) for number in self.signals_by_layer}
            for module in observers:
                _require_readable(module)
            self._open.enter_context(_observed(self.model, observers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        missed = set(self.signals_by_layer) - self._seen
        if kind is None and self._visual is not None and missed:
            raise UnreadableAttentionError(
                f"{type(self.model).__name__} does not route attention through transformers' AttentionInterface "
                f"(layers {sorted(missed)} were never seen): its attention cannot be read."
            )

    def _observer(self, number: int) -> Observer:
        module = self.layers[number]
        signals = self.signals_by_layer[number]
        kinds = {type(s): [r for r in signals if type(r) is type(s)] for s in signals}

        def timed(query: Tensor, key: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
            with listening(query.device):
                observe(query, key, mask, kwargs)

        @torch.enable_grad() if self.gradients else torch.no_grad()  # type: ignore[untyped-decorator]
        def observe(query: Tensor, key: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
            if self._visual is None:
                raise UnreadableAttentionError(
                    "call look_at() before the model runs, so that the tap knows the visual tokens."
                )
            self._seen.add(number)
            causal = kwargs.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            for b, (visual, valid) in enumerate(zip(self._visual, self._valid, strict=True)):
                if not len(visual):
                    continue
                view = LayerView(
                    query[b].index_select(1, valid),
                    key[b].index_select(1, valid),
                    scaling,
                    visual,
                    _allowed(mask, b, valid, bool(causal), kwargs.get("sliding_window")),
                )
                for kind, requests in kinds.items():
                    self.pages[b].update(kind.measure(requests, view))  # type: ignore[arg-type]

        return timed


def find_attention(model: nn.Module, run: Callable[[], object], tokens: int) -> list[nn.Module]:
    """The attention modules through which sequences of `tokens` pass when `run` calls the model, in order."""
    seen: dict[nn.Module, None] = {}

    def watch(module: nn.Module) -> Observer:
        def observe(query: Tensor, *_: Any) -> None:
            if query.shape[2] == tokens:
                seen.setdefault(module)

        return observe

    with _observed(model, {module: watch(module) for module in model.modules()}):
        run()
    return list(seen)


def _allowed(mask: Tensor | None, b: int, valid: Tensor, causal: bool, window: int | None) -> Tensor | None:
    """The mask among a page's own tokens `(1 or H, T, T)`, or None if everything is allowed.

    FlashAttention's masks hold padding at most, which is already cut away: what else a token may not see stands in the
    kernel's other arguments. Where scaled-dot-product attention gets no mask, they say the same.
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
    free = page.all() if page.dtype == torch.bool else (page == 0).all()
    return None if bool(free) else page.expand(-1, len(valid), -1)
