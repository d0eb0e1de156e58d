"""`ShardedIndex`: an index that is searched by several processes of a cluster, with identical results."""

from __future__ import annotations

import logging
import math
import pickle
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anchorfold.cluster.connection import connection
from anchorfold.cluster.shard import Shard, ShardResult
from anchorfold.cluster.worker_pool import PoolSize
from anchorfold.errors import AnchorFoldError, UnavailableError
from anchorfold.indexes.index import Index
from anchorfold.indexes.index_model import IndexModel
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.retrieval.scan import Scanner
from anchorfold.retrieval.visual_search import PageSearch, visual_hits
from anchorfold.storage.hits import Hit, SearchRequest
from anchorfold.storage.protocol import PageStore
from anchorfold.storage.records import Version
from anchorfold.storage.snapshot import Snapshot

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import Encoder

_log = logging.getLogger(__name__)
TIMEOUT_SECONDS = 10.0  # of a query, including the restart of a shard that died
RETRY_SECONDS = 0.1  # between two requests to a shard that does not respond


class ShardedIndex(Index):
    """Index with sharded search. Everything else works as in `Index`: pages, thumbnails, writing.

    Every page is scored, as with `Index.search(..., exact=True)`: ranks and scores are the same. The folder must be
    accessible on all nodes of the cluster.

    >>> with ShardedIndex.open("my.index", address="auto", shards=4) as index:  # doctest: +SKIP
    ...     index.search("net revenue by region")
    """

    def __init__(self, store: PageStore, model: IndexModel) -> None:
        super().__init__(store, model)
        self._cluster = ExitStack()

    @classmethod
    def open(
        cls,
        path: str | Path,
        encoder: str | Encoder | None = None,
        *,
        address: str = "auto",
        shards: int = 2,
        cpus: float | None = None,
        timeout: float = TIMEOUT_SECONDS,
        allow_partial: bool = False,
        **load_options: Any,
    ) -> Self:
        """Open an index and start its shards, which are stopped by `close`.

        Args:
            path: the index folder.
            encoder: as in `Index.open`.
            address: address of the cluster, as in `Cluster`.
            shards: number of shards (processes).
            cpus: CPUs per shard; if None, 1 or the largest fraction with which all shards fit.
            timeout: timeout of a query in seconds.
            allow_partial: return partial results after a timeout (see `searched`) instead of raising UnavailableError.
            **load_options: further arguments of `anchorfold.load`.
        """
        if shards < 1:
            raise AnchorFoldError(f"an index needs at least 1 shard, got {shards}.")
        index = super().open(path, encoder, **load_options)
        store = index.store
        if not isinstance(store, EmbeddedStore):
            raise AnchorFoldError(
                f"{index.location} cannot be searched in shards: its database serves several nodes. Use Index.open."
            )
        with ExitStack() as stack:  # releases everything if a step fails
            ray = stack.enter_context(connection(address))
            cpus = shard_cpus(ray.nodes(), shards) if cpus is None else cpus
            search = ShardSearch(store, ray, shards, cpus, timeout, allow_partial)
            store.pages = search
            stack.callback(search.close)
            index._cluster = stack.pop_all()
        return index

    def close(self) -> None:
        """End the shards."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shard_cpus(nodes: list[dict[str, Any]], shards: int) -> float:
    """Return the CPUs per shard, at most 1, with which all shards fit on the nodes of `ray.nodes()`."""
    sizes = (math.floor(100 / count) / 100 for count in range(1, shards + 1))
    return next((cpus for cpus in sizes if PoolSize(None, cpus, 0).worker_count(nodes) >= shards), 1.0)


class ShardSearch(PageSearch):
    """Queries all shards and merges their results. Thread-safe.

    Args:
        store: the store of the index.
        ray: the connected Ray module.
        shards: number of shards.
        cpus: CPUs per shard.
        timeout: timeout of a query in seconds.
        allow_partial: whether to return partial results if shards time out.
    """

    def __init__(
        self, store: EmbeddedStore, ray: Any, shards: int, cpus: float, timeout: float, allow_partial: bool
    ) -> None:
        super().__init__(store)
        self.ray, self.timeout, self.allow_partial = ray, timeout, allow_partial
        actor = ray.remote(Shard).options(
            num_cpus=cpus, max_restarts=-1, max_concurrency=4, scheduling_strategy="SPREAD", enable_task_events=False
        )  # task events would add a tenth to the query time
        folder = str(store.folder.resolve())
        self.shards = [actor.remote(folder, number, shards) for number in range(shards)]
        self._last = threading.local()

    @property
    def searched(self) -> float:  # type: ignore[override]
        """Fraction of all pages that the last search of this thread scanned."""
        return getattr(self._last, "searched", 1.0)

    def close(self) -> None:
        """End the shards."""
        for shard in self.shards:
            self.ray.kill(shard)

    def hits(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the top pages per query; `exact` and `candidates` have no effect: shards score every page."""
        arrays = [np.asarray(query, np.float32) for query in request.vectors]
        deadline = time.monotonic() + self.timeout

        def search(snapshot: Snapshot, scanner: Scanner) -> list[list[Hit]] | None:
            allowed = self.allowed(snapshot, scanner.live, request)
            bits = None if allowed is None else np.packbits(allowed)
            results = self._query_shards(snapshot.version, (arrays, request.top_k, bits), deadline)
            if results is None:
                return None
            rankings = self._merge(scanner.live, results, len(arrays), request.top_k)
            return visual_hits(snapshot, scanner.live, rankings, request.public)

        while True:
            hits = self.with_scanner(search)
            if hits is not None:
                return hits

    def _query_shards(self, version: Version, arguments: tuple[Any, ...], deadline: float) -> list[ShardResult] | None:
        """Return the results of all shards for one version; None if a shard has a newer version.

        Raises:
            UnavailableError: shards timed out, and partial results are not allowed.
        """
        results: list[ShardResult] = []
        packed = pickle.dumps((version, *arguments))
        waiting = {shard.search_pickled.remote(packed): shard for shard in self.shards}
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            done, pending = self.ray.wait(list(waiting), num_returns=len(waiting), timeout=left)
            retries = []
            for ref in done:
                shard, result = waiting.pop(ref), self._result(ref)
                if result.version is not None and _is_newer(result.version, version):
                    return None
                if result.version == version:
                    results.append(result)
                else:  # it died, or its file system does not have the newest version yet
                    retries.append(shard)
            if pending or (retries and time.monotonic() >= deadline):
                if self.allow_partial:
                    break
                missing = len(pending) + len(retries)
                raise UnavailableError(
                    f"{missing} of {len(self.shards)} shards did not answer within {self.timeout:g} seconds: they are "
                    "being started, or wait for free CPUs of the cluster; try again in a moment."
                )
            if retries:
                time.sleep(RETRY_SECONDS)
                waiting = {shard.search_pickled.remote(packed): shard for shard in retries}
        return results

    def _result(self, ref: Any) -> ShardResult:
        """Return the result of a shard; without a version if it died and is being restarted."""
        try:
            result: ShardResult = pickle.loads(self.ray.get(ref))
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, AnchorFoldError):
                raise error.cause from None
            # The message of Ray contains the traceback and paths of the node, which clients must not see.
            _log.error("a shard failed", exc_info=error)
            raise UnavailableError(f"a shard failed: {type(error.cause).__name__}. The log has the details.") from None
        except self.ray.exceptions.RayError:
            return ShardResult(None)
        return result

    def _merge(
        self, live: LivePages, results: Sequence[ShardResult], queries: int, top_k: int
    ) -> list[list[tuple[int, float]]]:
        """Merge the top pages of all shards, equal scores in page order; scores do not depend on other pages."""
        self._last.searched = sum(result.pages for result in results) / len(live) if len(live) else 1.0
        rankings = []
        for query in range(queries):
            pages = [page for result in results for page in result.rankings[query]]
            rankings.append(sorted(pages, key=lambda page: (-page[1], page[0]))[:top_k])
        return rankings


def _is_newer(other: Version, version: Version) -> bool:
    """Return whether a shard has a later commit than requested, or a commit of another history."""
    return other != version and (other.index_id != version.index_id or other.commits >= version.commits)
