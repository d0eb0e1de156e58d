"""The attention tap: read what compressors need while a transformers model runs on its own fast attention.

    with AttentionTap(model, attention_modules, signals) as tap:
        tap.look_at(visual, attention_mask)
        model(**inputs)
    tap.pages[0][Propagated(layer=25, steps=6)]      # (N,)

Inside the block, the model's attention function is wrapped: it runs as before, and for the layers that a
signal names it also hands over its queries and keys, which are reduced to one vector a page at once. The block holds
the model's lock: other threads that listen to the same model wait, and what they run meanwhile is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from anchorfold.attention.listening_time import listening
from anchorfold.attention.model_lock import model_lock, own_thread
from anchorfold.attention.signals import LayerView, Signal
from anchorfold.errors import BrokenModelError

PREFIX = "anchorfold_"
_HOOK = "_anchorfold_observers"

# Called with queries, keys, the mask and the attention function's other arguments.
Observer = Callable[[Tensor, Tensor, Tensor | None, dict[str, Any]], None]


class UnreadableAttentionError(BrokenModelError):
    """What was asked of the model's attention cannot be read."""


def _wrapped(base: str) -> str:
    """Register and name the observing twin of an attention implementation."""
    name = PREFIX + base
    if name not in ALL_ATTENTION_FUNCTIONS:
        run = ALL_ATTENTION_FUNCTIONS[base]

        def attend(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None = None,
            **kwargs: Any,
        ) -> Any:
            for observe in module.__dict__.get(_HOOK, ()):
                observe(query, key, attention_mask, kwargs)
            return run(module, query, key, value, attention_mask, **kwargs)

        AttentionInterface.register(name, attend)
        # Without a mask function of the same name, transformers would silently drop all masks.
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
    return name


def _configs(model: nn.Module) -> list[PretrainedConfig]:
    """Every configuration object in the model: attention and masks may read different copies."""
    found: dict[int, PretrainedConfig] = {}

    def visit(config: object) -> None:
        if isinstance(config, PretrainedConfig) and id(config) not in found:
            found[id(config)] = config
            for name in config.sub_configs:
                visit(getattr(config, name, None))

    for module in model.modules():
        visit(getattr(module, "config", None))
    return list(found.values())


@contextmanager
def _observed(model: nn.Module, observers: Mapping[nn.Module, Observer]) -> Iterator[None]:
    """Inside the block, these attention modules of the model also call their observers."""
    with model_lock(model), ExitStack() as undo:
        for config in _configs(model):
            undo.callback(setattr, config, "_attn_implementation_internal", config._attn_implementation)
            config._attn_implementation_internal = _wrapped(_base_of(config))
        for module, observe in observers.items():
            before = module.__dict__.get(_HOOK, ())
            undo.callback(setattr, module, _HOOK, before) if before else undo.callback(delattr, module, _HOOK)
            setattr(module, _HOOK, (*before, own_thread(observe)))
        yield


def _base_of(config: PretrainedConfig) -> str:
    """The attention implementation that a config names and whose twin can be observed."""
    name = config._attn_implementation
    # Eager attention is a function private to each model; its fast equal is scaled-dot-product attention.
    base = "sdpa" if name in (None, "eager") else name.removeprefix(PREFIX)
    if base not in ALL_ATTENTION_FUNCTIONS or base not in ALL_MASK_ATTENTION_FUNCTIONS or "flex" in base:
        raise UnreadableAttentionError(
            f"attention of the implementation {base!r} cannot be read: load the model with 'sdpa'."
        )
    return base


class AttentionTap:
    """Context manager that collects signals from a model's attention layers.

    Args:
        model: the model to run inside the block.
        layers: its language layers' attention modules, in order.
        signals: what to collect; only the layers that they name do any extra work.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module], signals: Iterable[Signal]) -> None:
        self.model, self.layers = model, list(layers)
        self.wanted: dict[int, list[Signal]] = {}
        for signal in dict.fromkeys(signals):
            if not 0 <= signal.layer < len(self.layers):
                raise UnreadableAttentionError(
                    f"{signal} names a layer that does not exist: the model has {len(self.layers)}."
                )
            self.wanted.setdefault(signal.layer, []).append(signal)
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
        if self.wanted:
            with ExitStack() as stack:
                stack.enter_context(
                    _observed(self.model, {self.layers[number]: self._observer(number) for number in self.wanted})
                )
                for module in (self.layers[number] for number in self.wanted):
                    implementation = getattr(module.config, "_attn_implementation", None)
                    if not str(implementation).startswith(PREFIX):
                        raise UnreadableAttentionError(
                            f"{type(module).__name__} kept its attention implementation {implementation!r}: its "
                            "attention cannot be read."
                        )
                self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        missed = set(self.wanted) - self._seen
        if kind is None and self._visual is not None and missed:
            raise UnreadableAttentionError(
                f"{type(self.model).__name__} does not route attention through transformers' AttentionInterface "
                f"(layers {sorted(missed)} were never seen): its attention cannot be read."
            )

    def _observer(self, number: int) -> Observer:
        module = self.layers[number]
        signals = self.wanted[number]
        kinds = {type(s): [r for r in signals if type(r) is type(s)] for s in signals}

        @torch.no_grad()
        def timed(query: Tensor, key: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
            with listening(query.device):
                observe(query, key, mask, kwargs)

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
                    _allowed(mask, b, valid, bool(causal)),
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


def _allowed(mask: Tensor | None, b: int, valid: Tensor, causal: bool) -> Tensor | None:
    """The mask among a page's own tokens `(1 or H, T, T)`, or None if everything is allowed."""
    if mask is None or mask.ndim == 2:  # a flash mask holds padding only, which is already cut away
        n = len(valid)
        return torch.ones(1, n, n, dtype=torch.bool, device=valid.device).tril() if causal else None
    page = mask[min(b, len(mask) - 1)].index_select(-1, valid)
    if page.shape[-2] > 1:
        page = page.index_select(-2, valid)
    free = page.all() if page.dtype == torch.bool else (page == 0).all()
    return None if bool(free) else page.expand(-1, len(valid), -1)
