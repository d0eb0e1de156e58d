"""Classify errors: caused by a page, which can be skipped, or by the model, which would fail on every page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anchorfold.errors import AnchorFoldError, BrokenModelError

_NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
_DEVICE_ERRORS = (*_NO_MEMORY, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))  # the former from torch 2.8
_MAX_MESSAGE = 300  # characters; some kernels print pages


@contextmanager
def preparing_pages() -> Iterator[None]:
    """Raise errors inside the block as errors of the page (ValueError or OSError), except device failures."""
    try:
        yield
    except _DEVICE_ERRORS as error:
        raise _broken(error) from error
    except (AnchorFoldError, ValueError, OSError, ImportError):
        raise
    except Exception as error:
        raise ValueError(f"cannot prepare the page for the model: {_reason(error)}") from error


@contextmanager
def running_model() -> Iterator[None]:
    """Raise errors inside the block as BrokenModelError, except ValueError and OSError, which may concern the page."""
    try:
        yield
    except (AnchorFoldError, ValueError, OSError):
        raise
    except Exception as error:
        raise _broken(error) from error


def _broken(error: Exception) -> BrokenModelError:
    reason = _reason(error)
    if isinstance(error, _NO_MEMORY) or "allocate memory" in reason or "out of memory" in reason:
        advice = "out of memory: use a smaller batch size (fewer pages at once), a smaller model or another device"
    else:
        advice = "check the device and precision it was loaded with; device cpu and dtype float32 always work"
    return BrokenModelError(f"the model cannot run ({reason}); {advice}.")


def _reason(error: Exception) -> str:
    """Return an error as one short line."""
    text = " ".join(str(error).split())
    return (text[:_MAX_MESSAGE] or type(error).__name__).rstrip(".")
