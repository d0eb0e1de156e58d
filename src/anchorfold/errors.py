"""Errors that a user can act on, printed as one line by the command line, and warnings."""

from __future__ import annotations


def os_reason(error: OSError) -> str:
    """Return the short message of an operating system error in lower case."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def first_line(error: Exception) -> str:
    """Return the first line of a library's message without its full stop, or the name of the error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(". ")


class AnchorFoldError(Exception):
    """Base class of errors that the caller can fix; the message states the problem, its location and the fix."""


class InvalidArgumentError(AnchorFoldError, ValueError):
    """An argument is out of range, unknown, or contradicts another one."""


class MissingExtraError(AnchorFoldError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it."""

    def __init__(self, what: str, extra: str, error: ImportError) -> None:
        super().__init__(f"{what} cannot be imported ({error}): pip install 'anchorfold[{extra}]'.")


class UnreadableDocumentError(AnchorFoldError):
    """A file cannot be indexed; the message contains only the reason."""


class BrokenModelError(AnchorFoldError):
    """The model cannot run; the cause is not a page, so further pages would fail too."""


class UnreadableAttentionError(BrokenModelError):
    """The requested attention of the model cannot be captured."""


class FilterError(AnchorFoldError):
    """A filter cannot be parsed or does not match the columns of the index."""


class MismatchError(AnchorFoldError):
    """The index was created with another model, dimension, compressor or version."""


class StoreError(AnchorFoldError):
    """An index cannot be read or written at the moment; committed data is unchanged."""


class NotAnIndexError(StoreError):
    """The folder does not contain an index."""


class DamagedError(StoreError):
    """A file of the index is missing or differs from what was written.

    Args:
        message: full error message.
        problem: the problem without location and advice; `message` by default.
    """

    def __init__(self, message: str, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem or message


class DiskFullError(StoreError):
    """No space is left on the device of the index."""


class LockedError(StoreError):
    """Another process is writing to the index."""


class CheckpointError(AnchorFoldError):
    """The weights or configuration of a checkpoint do not match its declared model."""


class UnavailableError(AnchorFoldError):
    """A part of the index is temporarily unavailable."""


class UncalibratedWarning(UserWarning):
    """The backbone has no calibration: its window is a default by depth."""


class CausalBackboneWarning(UserWarning):
    """Visual tokens of the backbone cannot attend to later ones, as attention-based compressors assume they can."""


class AssumedLayoutWarning(UserWarning):
    """A part of the checkpoint's layout, such as its prompts, is not public and was assumed."""


class UntrainedDimensionsWarning(UserWarning):
    """The model is not known to have been trained for truncated vectors."""
