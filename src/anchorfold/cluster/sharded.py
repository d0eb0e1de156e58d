"""`ShardedIndex`: an index whose pages are searched by the processes of a cluster, with the answers of one."""

from __future__ import annotations

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
from anchorfold.cluster.crew import CrewSize
from anchorfold.cluster.shard import Shard, ShardAnswer
from anchorfold.errors import AnchorFoldError, UnavailableError
from anchorfold.index import Hit, Index
from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.hits import EVERYTHING, Selection
from anchorfold.index.live import LivePages
from anchorfold.index.model import IndexModel
from anchorfold.index.scan import Scanner
from anchorfold.index.searching import PageSearch, visual_hits
from anchorfold.index.store.records import Version
from anchorfold.index.store.snapshot import Snapshot

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import PageEncoder

LIMIT_SECONDS = 10.0  # that a query waits for a shard that died
PAUSE_SECONDS = 0.1  # between two questions to a shard that does not answer


class ShardedIndex(Index):
    """An index that is searched by shards. All else is as with `Index`: pages, pictures, writing.

    Every page is scored, as with `Index.search(..., exact=True)`: ranks and scores are the same. The folder must be
    one that all nodes of the cluster see.

    >>> with ShardedIndex.open("my.index", address="auto", shards=4) as index:  # doctest: +SKIP
    ...     index.search("net revenue by region")
    """

    def __init__(self, store: EmbeddedStore, model: IndexModel) -> None:
        super().__init__(store, model)
        self._cluster = ExitStack()

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: str | PageEncoder | None = None,
        *,
        address: str = "auto",
        shards: int = 2,
        cpus: float | None = None,
        limit: float = LIMIT_SECONDS,
        allow_partial: bool = False,
        **load_options: Any,
    ) -> Self:
        """An index with its shards, which end when it is closed.

        Args:
            path: the index.
            model: as for `Index.open`.
            address: of the cluster, as for `Cluster`.
            shards: how many processes share the pages.
            cpus: that a shard takes of its node; 1, or as much less as is needed to have room for all, if None.
            limit: seconds that a query waits for shards that do not answer.
            allow_partial: answer from the others then; `searched` says how much that was. Else UnavailableError.
            **load_options: for `anchorfold.load`.
        """
        if shards < 1:
            raise AnchorFoldError(f"an index needs at least 1 shard, got {shards}.")
        index = super().open(path, model, **load_options)
        with ExitStack() as stack:  # of which nothing is left if a step fails
            ray = stack.enter_context(connection(address))
            cpus = shard_cpus(ray.nodes(), shards) if cpus is None else cpus
            search = ShardSearch(index._store, ray, shards, cpus, limit, allow_partial)
            index._store.pages = search
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
    """What a shard can take of a node so that all have room on these, as `ray.nodes` lists them; at most 1."""
    sizes = (math.floor(100 / count) / 100 for count in range(1, shards + 1))
    return next((cpus for cpus in sizes if CrewSize(None, cpus, 0).wanted(nodes) >= shards), 1.0)


class ShardSearch(PageSearch):
    """Asks all shards, and merges what they say. Safe for threads.

    Args:
        store: the index.
        ray: the library, connected.
        shards: how many.
        cpus: a shard.
        limit: seconds that a query waits.
        allow_partial: whether it is answered without shards that are silent after that.
    """

    def __init__(
        self, store: EmbeddedStore, ray: Any, shards: int, cpus: float, limit: float, allow_partial: bool
    ) -> None:
        super().__init__(store)
        self.ray, self.limit, self.allow_partial = ray, limit, allow_partial
        actor = ray.remote(Shard).options(
            num_cpus=cpus, max_restarts=-1, max_concurrency=4, scheduling_strategy="SPREAD", enable_task_events=False
        )  # events of every query would cost a tenth of it
        folder = str(store.folder.resolve())
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
        self,
        queries: Sequence[Any],
        top: int,
        selection: Selection = EVERYTHING,
        exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]:
        """The best pages for each query; `exact` and `candidates` have no effect, since shards score every page."""
        arrays = [np.asarray(query, np.float32) for query in queries]
        deadline = time.monotonic() + self.limit

        def search(snapshot: Snapshot, scanner: Scanner) -> list[list[Hit]] | None:
            allowed = self.allowed(snapshot, scanner.live, selection)
            bits = None if allowed is None else np.packbits(allowed)
            answers = self._ask(snapshot.version, (arrays, top, bits), deadline)
            if answers is None:
                return None
            rankings = self._merged(scanner.live, answers, len(arrays), top)
            return visual_hits(snapshot, scanner.live, rankings, selection.public)

        while True:
            hits = self.with_scanner(search)
            if hits is not None:
                return hits

    def _ask(self, version: Version, question: tuple[Any, ...], deadline: float) -> list[ShardAnswer] | None:
        """What all shards say of one version; None if there is a newer one meanwhile.

        Raises:
            UnavailableError: some are silent at the deadline, and a part is not enough.
        """
        answers: list[ShardAnswer] = []
        packed = pickle.dumps((version, *question))
        waiting = {shard.answer.remote(packed): shard for shard in self.shards}
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            done, silent = self.ray.wait(list(waiting), num_returns=len(waiting), timeout=left)
            again = []
            for ref in done:
                shard, answer = waiting.pop(ref), self._answer(ref)
                if answer.version is not None and _is_newer(answer.version, version):
                    return None
                if answer.version == version:
                    answers.append(answer)
                else:  # it died, or its file system does not show the newest version yet
                    again.append(shard)
            if silent or (again and time.monotonic() >= deadline):
                if self.allow_partial:
                    break
                raise UnavailableError(
                    f"{len(silent) + len(again)} of {len(self.shards)} shards did not answer within {self.limit:g} "
                    "seconds: they are being started, or wait for room in the cluster; try again in a moment."
                )
            if again:
                time.sleep(PAUSE_SECONDS)
                waiting = {shard.answer.remote(packed): shard for shard in again}
        return answers

    def _answer(self, ref: Any) -> ShardAnswer:
        """What a shard said; no version if it died, and is being started again."""
        try:
            answer: ShardAnswer = pickle.loads(self.ray.get(ref))
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, AnchorFoldError) else error from None
        except self.ray.exceptions.RayError:
            return ShardAnswer(None)
        return answer

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


def _is_newer(found: Version, version: Version) -> bool:
    """Whether a shard has a later commit, or one of another history, than the one that was requested."""
    return found != version and (found.index_id != version.index_id or found.commits >= version.commits)
