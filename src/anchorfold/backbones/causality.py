"""Whether visual tokens can look ahead, which the method assumes: asked of a model by disturbing one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anchorfold.attention.model_lock import own_thread


class CausalBackboneWarning(UserWarning):
    """The backbone's visual tokens cannot look ahead, which the method assumes they can."""

    @classmethod
    def of(cls, name: str) -> CausalBackboneWarning:
        """What it means for a model of this name."""
        return cls(
            f"{name} is causal: its visual tokens cannot look ahead, so attention drains into the first ones "
            "of a page, and AnchorFold, SAP and DocPruner lose their meaning; take a backbone with bidirectional "
            "attention, or another method (`anchorfold calibrate --compare` tells which)."
        )


def first_is_blind_to_last(visual_states: Callable[[], Tensor], first_layer: nn.Module, visual: Tensor) -> bool:
    """Whether the first visual token stays as it is when the last one is disturbed.

    Args:
        visual_states: runs the model on one page, gives the final states `(n, d)` of its visual tokens.
        first_layer: the model's first attention module, where the last token is disturbed.
        visual: `(T,)` marks the visual tokens of that page.
    """
    last = int(visual.nonzero()[-1])

    @own_thread
    def disturb(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        states = states.clone()
        states[0, last] += torch.linspace(-3, 3, states.shape[-1], dtype=states.dtype, device=states.device)
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": states}
        return (states, *args[1:]), kwargs

    before = visual_states()[0]
    handle = first_layer.register_forward_pre_hook(disturb, with_kwargs=True)
    try:
        after = visual_states()[0]
    finally:
        handle.remove()
    return bool(torch.equal(before, after))
