"""Time that attention capture adds to forward passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch import Tensor


class CaptureTime:
    """Time that taps spend on signals; read `seconds` after the device has finished."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, Any]] = []

    @property
    def seconds(self) -> float:
        """Total over all layers."""
        return sum(
            float(began.elapsed_time(ended) / 1000 if isinstance(began, torch.cuda.Event) else ended - began)
            for began, ended in self.spans
        )


_capture_time: ContextVar[CaptureTime | None] = ContextVar("capture time", default=None)


@contextmanager
def measure_capture_time() -> Iterator[CaptureTime]:
    """Measure the capture time of taps in the current thread inside the block."""
    token = _capture_time.set(measured := CaptureTime())
    try:
        yield measured
    finally:
        _capture_time.reset(token)


def timed(observe: Callable[..., None]) -> Callable[..., None]:
    """Record the duration of each call. On a GPU with events: synchronising would change the total."""

    @wraps(observe)
    def run(query: Tensor, *args: Any) -> None:
        measured = _capture_time.get()
        if measured is None:
            observe(query, *args)
        elif query.device.type == "cuda":
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            observe(query, *args)
            ended.record()
            measured.spans.append((began, ended))
        else:
            start = time.perf_counter()
            observe(query, *args)
            measured.spans.append((start, time.perf_counter()))

    return run
