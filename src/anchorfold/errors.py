"""Errors that a user can act on. The command line prints them as one line."""

from __future__ import annotations


class AnchorFoldError(Exception):
    """Something that the caller can mend; the message says what is wrong, where, and what to do."""


class UnreadableDocumentError(AnchorFoldError):
    """A file that cannot be indexed; the message is the reason alone."""


class NotAnIndexError(AnchorFoldError):
    """The folder holds no index, or a damaged one."""


class MismatchError(AnchorFoldError):
    """The index was made with another model, dimension, compressor or version."""


class LockedError(AnchorFoldError):
    """Another process is writing to the index."""


class CheckpointError(AnchorFoldError):
    """A checkpoint whose weights or configuration do not fit the model that it says it is."""
