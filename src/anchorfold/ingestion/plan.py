"""Plan an indexing run from the listed documents and the state of the store, without reading files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anchorfold.documents.files import Document
from anchorfold.storage.records import DocumentState


@dataclass(frozen=True)
class Plan:
    """`read` contains the documents to open; documents with the stored size and time are `unchanged`.

    `moved` maps old to new sources of documents whose folder was moved. `stale` contains sources of unchanged documents
    with staged pages of an abandoned version. All documents have their stored name.
    """

    read: list[Document] = field(default_factory=list)
    unchanged: list[Document] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)


def make_plan(
    documents: Sequence[Document], states: Mapping[str, DocumentState], exists: Callable[[str], bool]
) -> Plan:
    """Compare documents with the store.

    Files are identified by path. A new path with an existing name is a moved file, unless the old file still exists:
    then both are indexed, and the name of the new one is its full path.

    Args:
        documents: documents on disk.
        states: stored documents by source.
        exists: returns whether the file of a source exists.
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
    """Return old and new sources of deleted documents whose folders were moved.

    These documents are then missing from the new folders and can be pruned with them.
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
    """Return both paths without their common trailing components."""
    befores, afters = old.split(os.sep), new.split(os.sep)
    while befores and afters and befores[-1] == afters[-1]:
        befores.pop()
        afters.pop()
    return os.sep.join(befores), os.sep.join(afters)


def missing_documents(
    roots: Sequence[str], present: set[str], states: Mapping[str, DocumentState], exists: Callable[[str], bool]
) -> dict[str, str]:
    """Return indexed documents below `roots` whose files were deleted, as source to name."""
    return {
        source: state.document
        for source, state in states.items()
        if source not in present
        and any(source == r or source.startswith(r.rstrip(os.sep) + os.sep) for r in roots)
        and not exists(source)
    }
