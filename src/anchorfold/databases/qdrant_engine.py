"""One collection of a Qdrant server, or of a folder of the client's local mode."""

from __future__ import annotations

import atexit
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from anchorfold.databases.urls import keyring_password, without_password
from anchorfold.errors import InvalidArgumentError, MissingExtraError, NotAnIndexError, StoreError

try:
    from qdrant_client import QdrantClient, models
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
except ImportError as error:
    raise MissingExtraError("qdrant-client, which a qdrant:// index requires,", "qdrant", error) from error

__all__ = ["QdrantAddress", "QdrantEngine", "all_of", "close_local", "matches", "models"]
API_KEY = "QDRANT_API_KEY"
FORM = "qdrant://HOST:6333/COLLECTION, qdrant+https://HOST/COLLECTION or qdrant:///FOLDER/COLLECTION"
MIN_VERSION = (1, 16)  # the first one with conditional updates
TIMEOUT = 60  # seconds per request
SCROLL = 1000  # points per request without vectors
_NAME = re.compile(r"[\w.-]{1,255}")
_local_clients: dict[tuple[int, str], tuple[QdrantClient, threading.RLock]] = {}
_opening = threading.Lock()


@dataclass(frozen=True)
class QdrantAddress:
    """A parsed URL.

    Attributes:
        location: the URL without the API key.
        collection: name of the collection, or an alias.
        server: URL for the client; None for a folder.
        folder: folder of the client's local mode; empty for a server.
        api_key: key of the URL or of the environment; without it, `key` is that of the keyring.
    """

    location: str
    collection: str
    server: str | None
    folder: str = ""
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> QdrantAddress:
        """Parse a URL.

        Raises:
            InvalidArgumentError: it has another form.
        """
        location = without_password(url)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidArgumentError(f"{location} is not an index URL ({error}): write {FORM}.") from error
        if parts.username and not parts.password:
            raise InvalidArgumentError(f"an API key in a qdrant URL follows a colon: qdrant://:KEY@{host}/COLLECTION.")
        prefix, _, collection = unquote(parts.path).rstrip("/").rpartition("/")
        if not _NAME.fullmatch(collection):
            raise InvalidArgumentError(f"{location} names no collection: write {FORM}.")
        if not host:
            if not prefix:
                raise InvalidArgumentError(f"{location} names no folder: write {FORM}.")
            return cls(f"qdrant://{prefix}/{collection}", collection, None, prefix)
        secure = parts.scheme.endswith("+https")
        options = parse_qs(parts.query)
        key = unquote(parts.password or "") or next(iter(options.get("api_key", ())), "") or os.environ.get(API_KEY)
        address = f"[{host}]" if ":" in host else host
        server = f"{'https' if secure else 'http'}://{address}:{port or (443 if secure else 6333)}{prefix}"
        return cls(location, collection, server, api_key=key or None)

    @cached_property
    def key(self) -> str | None:
        """The API key, if there is one: of the URL, the environment, or `keyring set qdrant://HOST api_key`."""
        host = urlsplit(self.server or "").hostname
        return self.api_key or keyring_password(f"qdrant://{host}", "api_key")


class QdrantEngine:
    """Calls the client for one collection. Thread-safe; a forked child opens its own connection."""

    def __init__(self, address: QdrantAddress) -> None:
        self.address = address
        self._remote: tuple[int, QdrantClient] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the client's local mode is used."""
        return self.address.server is None

    @contextmanager
    def client(self) -> Iterator[QdrantClient]:
        """Use the client; convert its errors.

        Raises:
            NotAnIndexError: there is no such collection.
            StoreError: the server cannot be reached, refuses the request or fails.
        """
        location, name = self.address.location, self.address.collection
        try:
            if self.is_local:
                opened, lock = _local_client(self.address.folder)
                with lock, warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # local mode warns about what it ignores
                    yield opened
            else:
                yield self._server()
        except UnexpectedResponse as error:
            if error.status_code == 404:
                raise NotAnIndexError(f"{location}: there is no collection {name!r}.") from error
            if error.status_code in (401, 403):
                raise StoreError(
                    f"{location} refused the API key: set {API_KEY}, or store a key that may write with `keyring set "
                    f"qdrant://{urlsplit(self.address.server or '').hostname} api_key`."
                ) from error
            raise StoreError(f"{location} refused a request: {_reason(error)}.") from error
        except (ApiException, QdrantException, OSError) as error:
            raise StoreError(f"{location} failed ({_reason(error)}): run the command again to resume.") from error
        except ValueError as error:
            if f"Collection {name} not found" in str(error):
                raise NotAnIndexError(f"{location}: there is no collection {name!r}.") from error
            raise

    def _server(self) -> QdrantClient:
        if self._remote is None or self._remote[0] != os.getpid():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a key without TLS, which the URL says
                client = QdrantClient(
                    url=self.address.server, api_key=self.address.key, timeout=TIMEOUT, check_compatibility=False
                )
            self._remote = os.getpid(), client
        return self._remote[1]

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client with the name of the collection as first argument."""
        with self.client() as client:
            return getattr(client, method)(self.address.collection, *args, **options)

    def require_version(self) -> None:
        """Raise StoreError if the server is too old for concurrent writers."""
        if self.is_local:
            return
        with self.client() as client:
            version = str(client.info().version)
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        if numbers < MIN_VERSION:
            raise StoreError(
                f"{self.address.location} runs Qdrant {version}, and an index needs {'.'.join(map(str, MIN_VERSION))} "
                "or newer: upgrade the server."
            )

    # Points.

    def retrieve(self, ids: Sequence[str], payload: Any = True, vectors: Any = False) -> list[Any]:
        """Return the points that exist of some ids."""
        records: list[Any] = self.call("retrieve", list(ids), with_payload=payload, with_vectors=vectors)
        return records

    def scroll(
        self, condition: models.Filter, payload: Any = True, vectors: Any = False, batch: int = SCROLL
    ) -> Iterator[Any]:
        """Yield all points that match a filter, ordered by id."""
        offset: Any = None
        while True:
            records, offset = self.call(
                "scroll", condition, limit=batch, offset=offset, with_payload=payload, with_vectors=vectors
            )
            yield from records
            if offset is None:
                return

    def count(self, condition: models.Filter) -> int:
        """Return the number of points that match a filter."""
        return int(self.call("count", count_filter=condition, exact=True).count)

    def facet(self, key: str, condition: models.Filter, limit: int) -> dict[Any, int]:
        """Return the number of points by value of a payload field."""
        hits = self.call("facet", key, facet_filter=condition, limit=limit, exact=True).hits
        return {hit.value: int(hit.count) for hit in hits}

    def upsert(self, points: Sequence[models.PointStruct], only_if: models.Filter | None = None) -> None:
        """Insert or replace points; `only_if` must match the stored point if there is one."""
        if points:
            self.call("upsert", list(points), update_filter=only_if, wait=True, ordering=models.WriteOrdering.STRONG)

    def set_payload(self, values: dict[str, Any], condition: models.Filter) -> None:
        """Set fields of the points that match a filter."""
        self.call("set_payload", values, points=models.FilterSelector(filter=condition), wait=True)

    def delete(self, condition: models.Filter) -> None:
        """Delete the points that match a filter."""
        self.call("delete", models.FilterSelector(filter=condition), wait=True)

    def stored_bytes(self) -> int:
        """Return the disk usage of the collection as the engine reports it; 0 if it does not."""
        if self.is_local:
            folder = Path(self.address.folder) / "collection" / self.real_name()
            return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        report = self._telemetry().get("collections") or {}
        shards = [
            shard["local"]
            for collection in report.get("collections") or []
            if collection.get("id") == self.real_name()
            for shard in collection.get("shards") or []
            if shard.get("local")
        ]
        segments = [segment["info"] for shard in shards for segment in shard.get("segments") or []]
        sizes = ("vectors_size_bytes", "payloads_size_bytes")
        return sum(int(s.get("disk_usage_bytes") or sum(int(s.get(size) or 0) for size in sizes)) for s in segments)

    def _telemetry(self) -> dict[str, Any]:
        """Return the report of the server; empty if the key may not read it."""
        import httpx

        headers = {"api-key": self.address.key} if self.address.key else {}
        try:
            answer = httpx.get(f"{self.address.server}/telemetry?details_level=4", headers=headers, timeout=TIMEOUT)
            report: dict[str, Any] = answer.json()["result"] if answer.is_success else {}
        except (httpx.HTTPError, ValueError, KeyError):
            return {}
        return report

    def real_name(self) -> str:
        """Return the name of the collection behind an alias."""
        with self.client() as client:
            aliases = {alias.alias_name: alias.collection_name for alias in client.get_aliases().aliases}
        return str(aliases.get(self.address.collection, self.address.collection))


def _local_client(folder: str) -> tuple[QdrantClient, threading.RLock]:
    """Return the client of a folder, which only one client may open, and the lock of its calls."""
    key = os.getpid(), os.path.realpath(folder)
    with _opening:
        if key not in _local_clients:
            try:
                client = QdrantClient(path=key[1], force_disable_check_same_thread=True)
            except RuntimeError as error:
                raise StoreError(
                    f"{folder} is open in another process: the local mode of qdrant-client serves one process at a "
                    "time. Use a Qdrant server for more."
                ) from error
            _local_clients[key] = client, threading.RLock()
        return _local_clients[key]


def close_local(folder: str) -> None:
    """Close the client of a folder, so that another process may open it."""
    with _opening:
        opened = _local_clients.pop((os.getpid(), os.path.realpath(folder)), None)
    if opened is not None:
        with opened[1]:
            opened[0].close()


@atexit.register
def _close_all() -> None:
    """Close the folders of this process: at the end of the interpreter the client cannot do it any more."""
    for process, folder in list(_local_clients):
        if process == os.getpid():
            close_local(folder)


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, UnexpectedResponse):
        text = error.content.decode(errors="replace")
    cause = error.__cause__ or error
    return (text or str(cause) or type(error).__name__).strip().splitlines()[0][:300]


# Filters.


def matches(key: str, value: Any) -> models.FieldCondition:
    """Return a condition that a field has a value, or one of a list of values."""
    if isinstance(value, list):
        return models.FieldCondition(key=key, match=models.MatchAny(any=value))
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


def all_of(*conditions: Any, none_of: Sequence[Any] = ()) -> models.Filter:
    """Return a filter of conditions that must hold and conditions that must not."""
    return models.Filter(must=list(conditions), must_not=list(none_of) or None)
