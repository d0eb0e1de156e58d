"""Many threads, one model: hooks and the attention that a tap redirects belong to the model, so passes take turns.

A pass that we listen to holds the model's lock. A pass of somebody else, who does not know the lock, may run beside it:
hooks made with `own_thread` do not hear it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

_locks: WeakKeyDictionary[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
_registering = threading.Lock()


def model_lock(model: nn.Module) -> AbstractContextManager[Any]:
    """The re-entrant lock of a model; a wrapper such as an encoder shares that of the transformers model inside."""
    core = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), model)
    with _registering:
        return _locks.setdefault(core, threading.RLock())


def own_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that hears the passes of the thread that made it, and no others."""
    owner = threading.get_ident()

    @wraps(hook)
    def hear(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if threading.get_ident() == owner else None

    return hear
