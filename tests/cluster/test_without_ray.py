"""Worker pool and sharded search on a substitute for Ray that runs actors in this process."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from anchorfold.backbones.checkpoint import BACKBONES
from anchorfold.cluster.cluster import ClusterPageSource
from anchorfold.cluster.sharded_index import ShardSearch
from anchorfold.cluster.worker_pool import PoolSize, WorkerPool
from anchorfold.errors import AnchorFoldError, BrokenModelError
from tests.cluster.conftest import PAGES
from tests.cluster.contents import contents
from tests.cluster.stand_in import BACKBONE, BROKEN, NAME, UNEXPECTED
from tests.number_reader import write_pdf


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(repr(cause))
        self.cause = cause


class Actor:
    def __init__(self, instance):
        self._instance = instance

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: Result(getattr(self._instance, name), arguments))


class Result:
    def __init__(self, method, arguments):
        try:
            self.value, self.error = method(*arguments), None
        except Exception as error:
            self.error = RayTaskError(error)


class LocalRay:
    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def remote(self, kind):
        factory = SimpleNamespace(remote=lambda *arguments: Actor(kind(*arguments)))
        factory.options = lambda **_: factory
        return factory

    def get(self, result):
        if result.error is not None:
            raise result.error
        return result.value

    def wait(self, results, num_returns, timeout):
        return results, []

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    def kill(self, actor):
        pass

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "0" * 56)


class LocalCluster:
    @contextmanager
    def source(self, job):
        with WorkerPool(LocalRay(), job, PoolSize(None, 1, 0), shared=True) as pool:
            yield ClusterPageSource(pool, task_pages=8)


@pytest.fixture(autouse=True)
def backbone():
    if NAME in BACKBONES:  # an entry point, if tests with a cluster ran before in this process
        yield
        return
    BACKBONES.register(NAME, BACKBONE)
    yield
    BACKBONES.unregister(NAME)


def test_a_worker_pool_writes_the_same_pages_as_one_process(make_index, documents):
    local, distributed = make_index("local"), make_index("distributed")
    local.add(documents)
    workers: list[Any] = []
    report = distributed.add(
        documents, cluster=LocalCluster(), progress=lambda p: workers.__setitem__(slice(None), p.workers)
    )
    assert report.skipped == []
    assert contents(distributed) == contents(local)
    assert len(workers) == 2
    assert sum(worker.pages for worker in workers) == PAGES


def test_a_document_that_raises_in_workers_is_skipped(make_index, documents):
    write_pdf(documents / "unexpected.pdf", [UNEXPECTED])
    index = make_index()
    report = index.add(documents, cluster=LocalCluster())
    assert [reason for _, reason in report.skipped] == ["cannot be read by the workers (KeyError('surprise'))"]
    assert len(contents(index)) == PAGES


def test_a_broken_model_ends_the_run(make_index, documents):
    write_pdf(documents / "broken.pdf", [BROKEN])
    with pytest.raises(BrokenModelError):
        make_index().add(documents, cluster=LocalCluster())


def test_an_unexpected_error_while_loading_is_not_hidden(make_index, documents, monkeypatch):
    monkeypatch.setattr("anchorfold.cluster.worker.IndexModel", lambda *_: int("x"))
    with pytest.raises(RayTaskError) as caught:
        make_index().add(documents, cluster=LocalCluster())
    assert not isinstance(caught.value, AnchorFoldError)


def test_sharded_search_equals_exact_search(make_index, documents):
    index = make_index()
    index.add(documents)
    expected = index.search(["page 24", "page 210"], exact=True)
    index.store.pages = ShardSearch(index.store, LocalRay(), 3, 1.0, timeout=10.0, allow_partial=False)
    assert index.search(["page 24", "page 210"]) == expected
    assert index.store.pages.searched == 1.0
