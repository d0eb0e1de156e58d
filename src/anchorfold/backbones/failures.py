"""Whose fault a failure is: a page's, which can be left out, or the model's, which would fail on every page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anchorfold.errors import AnchorFoldError, BrokenModelError

_NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
_MESSAGE = 300  # characters; some kernels print pages


@contextmanager
def preparing_pages() -> Iterator[None]:
    """What fails inside is the page's fault: a ValueError or OSError. A device that fails is still the model's."""
    try:
        yield
    except (*_NO_MEMORY, torch.AcceleratorError) as error:
        raise broken(error) from error
    except (AnchorFoldError, ValueError, OSError, ImportError):
        raise
    except Exception as error:
        raise ValueError(f"the page cannot be prepared for the model: {reason(error)}") from error


@contextmanager
def running_model() -> Iterator[None]:
    """What fails inside is the model's fault. Only a ValueError or OSError may still be about the page."""
    try:
        yield
    except (AnchorFoldError, ValueError, OSError):
        raise
    except Exception as error:
        raise broken(error) from error


def broken(error: Exception) -> BrokenModelError:
    """The error of a model that cannot run, with what to do."""
    why = reason(error)
    if isinstance(error, _NO_MEMORY) or "allocate memory" in why or "out of memory" in why:
        advice = "it ran out of memory: encode fewer pages at once, or take a smaller model or another device"
    else:
        advice = "check the device and precision that it was loaded with; device cpu and dtype float32 always work"
    return BrokenModelError(f"the model cannot run ({why}); {advice}.")


def reason(error: Exception) -> str:
    """An error as one short line."""
    text = " ".join(str(error).split())
    return (text[:_MESSAGE] or type(error).__name__).rstrip(".")
