"""Errors that a user can act on. The command line prints them as one line."""

from __future__ import annotations


class AnchorFoldError(Exception):
    """Something that the caller can mend; the message says what is wrong, where, and what to do."""


class MissingExtraError(AnchorFoldError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it."""

    def __init__(self, what: str, extra: str, error: ImportError) -> None:
        super().__init__(f"{what} cannot be imported ({error}): pip install 'anchorfold[{extra}]'.")


class UnreadableDocumentError(AnchorFoldError):
    """A file that cannot be indexed; the message is the reason alone."""


class BrokenModelError(AnchorFoldError):
    """The model cannot run: no page is to blame, and trying the next one would not help."""


class FilterError(AnchorFoldError):
    """A filter that cannot be understood, or does not fit the columns of the index."""


class MismatchError(AnchorFoldError):
    """The index was made with another model, dimension, compressor or version."""


class StoreError(AnchorFoldError):
    """An index that cannot be read or written now; what was committed is as it was."""


class NotAnIndexError(StoreError):
    """The folder holds no index."""


class DamagedError(StoreError):
    """A file of the index is missing or differs from what was written.

    Args:
        message: the whole sentence.
        problem: what is wrong, without the advice around it.
    """

    def __init__(self, message: str, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem or message


class DiskFullError(StoreError):
    """No room is left where the index is."""


class LockedError(StoreError):
    """Another process is writing to the index."""


class CheckpointError(AnchorFoldError):
    """A checkpoint whose weights or configuration do not fit the model that it says it is."""


class UnavailableError(AnchorFoldError):
    """A part of the index does not answer now, and will again."""
