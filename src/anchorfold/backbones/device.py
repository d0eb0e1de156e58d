"""The device that a model runs on."""

from __future__ import annotations

import torch

from anchorfold.errors import AnchorFoldError


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """The device of that name, or the best one there is; one clear sentence if it cannot be used here."""
    if not name:
        return torch.device(available_devices()[0])
    try:
        device = torch.device(name)
    except RuntimeError:
        raise AnchorFoldError(f"there is no device {str(name)!r}: choose {_choice()}.") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise AnchorFoldError(f"the device {str(name)!r} is not available here: choose {_choice()}.") from None
    if device.type == "meta":
        raise AnchorFoldError(f"the device 'meta' cannot compute anything: choose {_choice()}.")
    return device


def available_devices() -> list[str]:
    """CUDA, then Apple's MPS, then the CPU; `cuda:1` and so on where there are several."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = ["cuda", *(f"cuda:{i}" for i in range(1, count))] if count else []
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def _choice() -> str:
    *others, last = available_devices()
    return f"{', '.join(others)} or {last}" if others else last
