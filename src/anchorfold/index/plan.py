"""What a run of indexing has to do, from the documents at hand and what the table knows. Nothing is read here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anchorfold.documents.files import Document
from anchorfold.index.store.table import DocumentState


@dataclass(frozen=True)
class Plan:
    """`read` holds the documents to open; those whose size and time are as stored are `unchanged`.

    `moved` maps sources (old to new) of documents whose folder was moved, `stale` are sources of unchanged documents
    with staged pages of a version that is gone again. All documents have the name that the table knows them by.
    """

    read: list[Document] = field(default_factory=list)
    unchanged: list[Document] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)


def make_plan(
    documents: Sequence[Document], states: Mapping[str, DocumentState], exists: Callable[[str], bool]
) -> Plan:
    """Compare documents with the table.

    A file is known by its path. If that is new but its name is taken, the file was moved, together with the folder it
    is named from, unless the old one is still there: then they are two, and the new one gets its full path for a name.

    Args:
        documents: those found on disk.
        states: what the table knows, by source.
        exists: whether a file is at a source.
    """
    plan = Plan()
    owners = {state.document: source for source, state in states.items()}
    for document in documents:
        state, name = states.get(document.source), document.name
        if state is not None:
            name = state.document
        elif (old := owners.get(name)) is not None:
            if exists(old):
                name = document.source
            else:
                plan.moved[old] = document.source
                state = states[old]
        known = replace(document, name=name)
        same_file = state is not None and (state.size, state.modified) == (document.size, document.modified)
        if state is None or not same_file or not state.complete:
            plan.read.append(known)
            continue
        plan.unchanged.append(known)
        if state.staged:
            plan.stale.append(document.source)
    return plan


def missing_documents(
    roots: Sequence[str], present: set[str], states: Mapping[str, DocumentState], exists: Callable[[str], bool]
) -> dict[str, str]:
    """Indexed documents below `roots` that are gone from disk: source to name."""
    return {
        source: state.document
        for source, state in states.items()
        if source not in present
        and any(source == r or source.startswith(r.rstrip(os.sep) + os.sep) for r in roots)
        and not exists(source)
    }
