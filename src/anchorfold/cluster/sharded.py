"""`ShardedIndex`: an index whose pages are searched by the processes of a cluster, with the answers of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from anchorfold.cluster.connection import connection
from anchorfold.cluster.shard import Shard, ShardAnswer
from anchorfold.errors import AnchorFoldError, UnavailableError
from anchorfold.index import Hit, Index
from anchorfold.index.filters.columns import Where
from anchorfold.index.live import LivePages
from anchorfold.index.searching import PageSearch
from anchorfold.index.store.table import PageTable

LIMIT_SECONDS = 10.0  # that a query waits for a shard that died
PAUSE_SECONDS = 0.1  # between two questions to a shard that does not answer


class ShardedIndex(Index):
    """An index that is searched by shards. All else is as with `Index`: pages, pictures, writing.

    Every page is scored, as with `Index.search(..., exact=True)`: ranks and scores are the same. The folder must be
    one that all nodes of the cluster see.

    >>> with ShardedIndex.over("my.index", address="auto", shards=4) as index:  # doctest: +SKIP
    ...     index.search("net revenue by region")
    """

    _search: ShardSearch

    @classmethod
    @contextmanager
    def over(
        cls,
        path: str | Path,
        model: Any = None,
        *,
        address: str = "auto",
        shards: int = 2,
        cpus: float = 1.0,
        limit: float = LIMIT_SECONDS,
        allow_partial: bool = False,
        **load_options: Any,
    ) -> Iterator[Self]:
        """An index with its shards, which end with the context.

        Args:
            path: the index.
            model: as for `Index.open`.
            address: of the cluster, as for `Cluster`.
            shards: how many processes share the pages.
            cpus: a shard.
            limit: seconds that a query waits for shards that do not answer.
            allow_partial: answer from the others then; `searched` says how much that was. Else UnavailableError.
            **load_options: for `anchorfold.load`.
        """
        if shards < 1:
            raise AnchorFoldError(f"an index needs at least 1 shard, got {shards}.")
        index = cls.open(path, model, **load_options)
        with connection(address) as ray:
            search = ShardSearch(index._table, ray, shards, cpus, limit, allow_partial)
            index._search = search
            try:
                yield index
            finally:
                search.close()


class ShardSearch(PageSearch):
    """Asks all shards, and merges what they say. Safe for threads.

    Args:
        table: the index.
        ray: the library, connected.
        shards: how many.
        cpus: a shard.
        limit: seconds that a query waits.
        allow_partial: whether it is answered without shards that are silent after that.
    """

    def __init__(self, table: PageTable, ray: Any, shards: int, cpus: float, limit: float, allow_partial: bool) -> None:
        super().__init__(table)
        self.ray, self.limit, self.allow_partial = ray, limit, allow_partial
        actor = ray.remote(Shard).options(
            num_cpus=cpus, max_restarts=-1, max_concurrency=4, scheduling_strategy="SPREAD"
        )
        folder = str(table.folder.resolve())
        self.shards = [actor.remote(folder, number, shards) for number in range(shards)]
        self._last = threading.local()

    @property
    def searched(self) -> float:  # type: ignore[override]
        """The share of all pages that the last search of this thread looked through."""
        return getattr(self._last, "searched", 1.0)

    def close(self) -> None:
        """End the shards."""
        for shard in self.shards:
            self.ray.kill(shard)

    def hits(
        self, queries: Sequence[Any], top: int, documents: str | Sequence[str] | None = None,
        exact: bool | None = None, candidates: int | None = None, where: str | Where | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        """The best pages for each query; `exact` and `candidates` change nothing, since shards score every page."""
        arrays = [np.asarray(query, np.float32) for query in queries]
        deadline = time.monotonic() + self.limit
        while True:
            live = self.scanner().live
            allowed = self.allowed(live, documents, where)
            bits = None if allowed is None else np.packbits(allowed)
            answers = self._ask(live.version, (arrays, top, bits), deadline)
            if answers is not None:
                rankings = self._merged(live, answers, len(arrays), top)
                return [[self.hit(live, n, score, where) for n, score in ranking] for ranking in rankings]

    def _ask(self, version: int, question: tuple[Any, ...], deadline: float) -> list[ShardAnswer] | None:
        """What all shards say of one version; None if there is a newer one meanwhile.

        Raises:
            UnavailableError: some are silent at the deadline, and a part is not enough.
        """
        answers: list[ShardAnswer] = []
        waiting = {shard.search.remote(version, *question): shard for shard in self.shards}
        while waiting:
            left = deadline - time.monotonic()
            done, _ = self.ray.wait(list(waiting), timeout=left) if left > 0 else ([], [])
            if not done:
                if self.allow_partial:
                    break
                raise UnavailableError(
                    f"{len(waiting)} of {len(self.shards)} shards did not answer within {self.limit:g} seconds: they "
                    "are being started again; try again in a moment."
                )
            shard = waiting.pop(done[0])
            try:
                answer: ShardAnswer = self.ray.get(done[0])
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, AnchorFoldError) else error from None
            except self.ray.exceptions.RayError:  # it died, and is being started again
                answer = ShardAnswer(-1)
            if answer.version == version:
                answers.append(answer)
            elif answer.version > version:
                return None
            else:  # or its file system does not show the newest version yet
                time.sleep(PAUSE_SECONDS)
                waiting[shard.search.remote(version, *question)] = shard
        return answers

    def _merged(
        self, live: LivePages, answers: Sequence[ShardAnswer], queries: int, top: int
    ) -> list[list[tuple[int, float]]]:
        """A page's score depends on no other page: the best of all are among the best of each. Equal ones in order."""
        self._last.searched = sum(answer.pages for answer in answers) / len(live) if len(live) else 1.0
        rankings = []
        for query in range(queries):
            pages = [page for answer in answers for page in answer.rankings[query]]
            rankings.append(sorted(pages, key=lambda page: (-page[1], page[0]))[:top])
        return rankings
