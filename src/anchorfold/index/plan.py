"""Planning of a run of indexing from the given documents and the state of the store. No file is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anchorfold.documents.files import Document
from anchorfold.index.store.records import DocumentState


@dataclass(frozen=True)
class Plan:
    """`read` holds the documents to open; those whose size and time are as stored are `unchanged`.

    `moved` maps sources (old to new) of documents whose folder was moved, `stale` are sources of unchanged documents
    with staged pages of a version that is gone again. All documents have the name that the store has for them.
    """

    read: list[Document] = field(default_factory=list)
    unchanged: list[Document] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)


def make_plan(
    documents: Sequence[Document], states: Mapping[str, DocumentState], exists: Callable[[str], bool]
) -> Plan:
    """Compare documents with the store.

    A file is known by its path. If that is new but its name is taken, the file was moved, together with the folder it
    is named from, unless the old one is still there: then they are two, and the new one gets its full path for a name.

    Args:
        documents: those found on disk.
        states: what is stored, by path.
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
    if plan.moved:
        present = {document.source for document in documents}
        plan.moved.update(_moved_along(plan.moved, {s for s in states if s not in present and not exists(s)}))
    return plan


def _moved_along(moved: Mapping[str, str], gone: set[str]) -> dict[str, str]:
    """Where documents that are gone would be if they had stayed in their folders, which were moved: from, to.

    They are then missing from the new folders, and can be dropped with them.
    """
    folders = {_changed_part(old, new) for old, new in moved.items()}
    taken = set(moved.values())
    targets: dict[str, str] = {}
    for source in sorted(gone - moved.keys()):
        for before, after in folders:
            target = after + source[len(before) :]
            if source.startswith(before + os.sep) and target not in taken:
                targets[source] = target
                taken.add(target)
                break
    return targets


def _changed_part(old: str, new: str) -> tuple[str, str]:
    """Two paths without the folders and name at their ends that are the same."""
    befores, afters = old.split(os.sep), new.split(os.sep)
    while befores and afters and befores[-1] == afters[-1]:
        befores.pop()
        afters.pop()
    return os.sep.join(befores), os.sep.join(afters)


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
