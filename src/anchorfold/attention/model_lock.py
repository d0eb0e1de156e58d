"""One lock per model: hooks and wrapped attention functions belong to the model, so captured passes run one by one.

Code that does not take the lock may run the same model at the same time: `current_thread_only` hooks ignore its passes.
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
_registration = threading.Lock()


def model_lock(model: nn.Module) -> AbstractContextManager[Any]:
    """Return the re-entrant lock of a model; wrappers share the lock of the transformers model inside."""
    core = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), model)
    with _registration:
        return _locks.setdefault(core, threading.RLock())


def current_thread_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a hook so that it runs only in the thread that created it."""
    owner = threading.get_ident()

    @wraps(hook)
    def run(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if threading.get_ident() == owner else None

    return run
