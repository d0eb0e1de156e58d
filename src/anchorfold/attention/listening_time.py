"""How long a tap listens inside a model's layers, measured without holding the model up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_spans: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("listening spans", default=None)


class ListeningTime:
    """What was measured inside a `measured_listening` block; read it after the device has finished."""

    def __init__(self, spans: list[tuple[Any, Any]]) -> None:
        self._spans = spans

    @property
    def seconds(self) -> float:
        """All layers together."""
        return sum(
            float(began.elapsed_time(ended) / 1000 if isinstance(began, torch.cuda.Event) else ended - began)
            for began, ended in self._spans
        )


@contextmanager
def measured_listening() -> Iterator[ListeningTime]:
    """Inside the block, taps of this thread measure their own work."""
    spans: list[tuple[Any, Any]] = []
    token = _spans.set(spans)
    try:
        yield ListeningTime(spans)
    finally:
        _spans.reset(token)


@contextmanager
def listening(device: torch.device) -> Iterator[None]:
    """Around what a tap does in a layer. A GPU marks its own time line: waiting for it would change the total."""
    spans = _spans.get()
    if spans is None:
        yield
        return
    if device.type == "cuda":
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        yield
        ended.record()
        spans.append((began, ended))
        return
    start = time.perf_counter()
    yield
    spans.append((start, time.perf_counter()))
