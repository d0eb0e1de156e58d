"""The head of an index in Qdrant: one point that decides what is visible, and the leases of writers.

Qdrant changes one point atomically and nothing else. So a version of a document is replaced by one update of the head:
it lists the versions that are invisible, `staged` ones that are being written and `dead` ones that are being deleted. A
writer replaces the head only if it has not changed since it was read; the same condition protects the leases.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from anchorfold.databases.qdrant_engine import QdrantEngine, all_of, matches, models
from anchorfold.errors import LockedError, NotAnIndexError, StoreError
from anchorfold.storage.records import Version

HEAD = "00000000-0000-0000-0000-000000000001"
LEASES = "00000000-0000-0000-0000-000000000002"
HISTORY = 64  # commits whose documents the head lists
MANY = 200  # documents of one commit that are listed
ATTEMPTS = 100  # to change the head while others do
LEASE_SECONDS = 60.0
POLL_SECONDS = 0.2
_NEVER = all_of(matches("type", "none"))  # as a condition of an upsert: only insert


@dataclass(frozen=True)
class Head:
    """The state of an index. `staged` and `dead` map versions that are invisible to their documents.

    `history` has the last commits as (number, token, documents whose visible pages may have changed, None for all).
    """

    index_id: str
    settings: Mapping[str, Any]
    commits: int = 0
    token: str = ""
    text_complete: bool = True
    columns: Mapping[str, str] = field(default_factory=dict)
    staged: Mapping[str, int] = field(default_factory=dict)
    dead: Mapping[str, int] = field(default_factory=dict)
    history: Sequence[Sequence[Any]] = ()

    @property
    def version(self) -> Version:
        """The version of the commit."""
        return Version(self.index_id, self.commits, self.token)

    @property
    def hidden(self) -> list[str]:
        """The versions that are invisible."""
        return sorted({*self.staged, *self.dead})

    def changed_since(self, before: Head) -> set[int] | None:
        """Return the documents that changed between two heads; None if any may have."""
        if before.version == self.version:
            return set()
        later = [documents for number, _, documents in self.history if number > before.commits]
        if before.index_id != self.index_id or len(later) != self.commits - before.commits or None in later:
            return None
        return {document for documents in later for document in documents}


class HeadPoint:
    """Reads and replaces the head."""

    def __init__(self, engine: QdrantEngine) -> None:
        self.engine = engine

    def create(self, head: Head) -> None:
        """Store the first head, unless there is one."""
        self.engine.upsert([_point(HEAD, "index", {**asdict(head), "token": secrets.token_hex(8)})], only_if=_NEVER)

    def read(self) -> Head:
        """Return the newest head.

        Raises:
            NotAnIndexError: the collection is not an index.
        """
        records = self.engine.retrieve([HEAD])
        if not records:
            raise NotAnIndexError(
                f"{self.engine.address.location} is a collection without an AnchorFold index: choose another name, or "
                "compress it with `anchorfold compress`."
            )
        payload = {name: value for name, value in records[0].payload.items() if name != "type"}
        if unknown := sorted(payload.keys() - Head.__dataclass_fields__.keys()):
            raise StoreError(
                f"{self.engine.address.location} was created by a newer version of anchorfold ({', '.join(unknown)}): "
                "upgrade anchorfold."
            )
        return Head(**payload)

    def commit(self, change: Callable[[Head], Head], documents: Collection[int] | None = ()) -> Head:
        """Replace the head; again if another writer has done so since it was read.

        Args:
            change: returns the new head; may be called several times.
            documents: documents whose visible pages may change; None for all.
        """
        for attempt in range(ATTEMPTS):
            before, token = self.read(), secrets.token_hex(8)
            listed = None if documents is None or len(documents) > MANY else sorted(documents)
            entry = (before.commits + 1, token, listed)
            history = [*before.history, entry][-HISTORY:]
            after = replace(change(before), commits=before.commits + 1, token=token, history=history)
            unchanged = all_of(matches("token", before.token))
            self.engine.upsert([_point(HEAD, "index", asdict(after))], only_if=unchanged)
            if any(known == token for _, known, _ in self.read().history):
                return after
            time.sleep(secrets.randbelow(1 + min(attempt, 20)) / 100)
        raise StoreError(f"{self.engine.address.location} is changed by too many writers: run the command again.")


class Leases:
    """Leases of writers, in one point: `writers` by owner with their documents, host, process and time."""

    def __init__(self, engine: QdrantEngine) -> None:
        self.engine = engine
        self.owner = ""
        self._renewed = 0.0
        self._problem = ""

    @contextmanager
    def held(
        self, wait: float, waiting: Callable[[str], None] | None, stop: Callable[[], bool] | None,
        sources: Collection[str] | None,
    ) -> Iterator[None]:  # fmt: skip
        """Hold a lease; raise LockedError if other writers hold one for the same documents after `wait` seconds."""
        owner, began = secrets.token_hex(8), time.monotonic()
        lease: dict[str, Any] = {
            "documents": None if sources is None else sorted({zlib.crc32(s.encode()) for s in sources})
        }
        while (other := self._acquire(owner, lease)) is not None:
            text = f"process {other['process']} on {other['machine']} is writing to {self.engine.address.location}"
            if (0 <= wait <= time.monotonic() - began) or (stop is not None and stop()):
                raise LockedError(f"{text}: try again later.")
            if waiting is not None:
                waiting(f"{text}: waiting for it.")
                waiting = None
            time.sleep(POLL_SECONDS)
        ended = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(owner, ended), daemon=True)
        self.owner, self._renewed, self._problem = owner, time.monotonic(), ""
        renewal.start()
        try:
            yield
        finally:
            self.owner = ""
            ended.set()
            renewal.join()
            with suppress(StoreError):  # it expires
                self._change(lambda writers: {o: w for o, w in writers.items() if o != owner})

    def require(self) -> None:
        """Raise an error if this object may not write."""
        if not self.owner:
            raise RuntimeError("a write needs the writer lock: use `with store.writing():`")
        if self._problem or time.monotonic() - self._renewed > LEASE_SECONDS:
            raise StoreError(
                f"the lease of {self.engine.address.location} was lost ({self._problem or 'it expired'}): run the "
                "command again to resume."
            )

    def _acquire(self, owner: str, lease: dict[str, Any]) -> dict[str, Any] | None:
        """Try to add a lease; return a conflicting one."""
        conflict: list[dict[str, Any]] = []

        def add(writers: dict[str, Any]) -> dict[str, Any]:
            living = {o: w for o, w in writers.items() if not _is_dead(w, self.engine.is_local)}
            conflict[:] = [w for o, w in living.items() if o != owner and _overlap(w, lease)]
            mine = {**lease, **_process(), "renewed": time.time()}
            return living if conflict else {**living, owner: mine}

        self._change(add)
        return conflict[0] if conflict else None

    def _renew(self, owner: str, ended: threading.Event) -> None:
        def renewed(writers: dict[str, Any]) -> dict[str, Any]:
            if owner not in writers:
                raise StoreError("another writer took it over")
            return {**writers, owner: {**writers[owner], "renewed": time.time()}}

        while not ended.wait(LEASE_SECONDS / 4):
            try:
                began = time.monotonic()
                self._change(renewed)
                self._renewed = began
            except NotAnIndexError:
                return  # it was deleted
            except StoreError as error:
                if "took it over" in str(error):
                    self._problem = str(error)
                    return

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        for _ in range(ATTEMPTS):
            records, token = self.engine.retrieve([LEASES]), secrets.token_hex(8)
            before: dict[str, Any] = records[0].payload if records else {"token": "", "writers": {}}
            after = change(before["writers"])
            if after == before["writers"]:
                return
            unchanged = all_of(matches("token", before["token"])) if records else _NEVER
            self.engine.upsert([_point(LEASES, "leases", {"writers": after, "token": token})], only_if=unchanged)
            if self.engine.retrieve([LEASES])[0].payload["token"] == token:
                return
            time.sleep(secrets.randbelow(20) / 1000)
        raise StoreError(f"{self.engine.address.location} is changed by too many writers: run the command again.")


def _point(identity: str, kind: str, payload: Mapping[str, Any]) -> models.PointStruct:
    return models.PointStruct(id=identity, vector={}, payload={"type": kind, **payload})


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["documents"] is None or other["documents"] is None:
        return True
    return not set(one["documents"]).isdisjoint(other["documents"])


def _process() -> dict[str, Any]:
    """Return what identifies this process to others."""
    space = ""
    with suppress(OSError):  # process numbers are comparable within one boot and one namespace
        space = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return {"process": os.getpid(), "machine": platform.node(), "space": space}


def _is_dead(lease: Mapping[str, Any], is_local: bool) -> bool:
    """Return whether the holder of a lease has ended, or has not renewed it in time."""
    here = _process()
    if all(lease[name] == here[name] for name in ("machine", "space")):
        try:
            os.kill(lease["process"], 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
    if is_local and lease["process"] != here["process"]:
        return True  # local mode admits one process
    return bool(time.time() - lease["renewed"] > LEASE_SECONDS)
