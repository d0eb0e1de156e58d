"""Indexing on two real nodes gives the same index as one process."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from anchorfold.cluster import Cluster
from anchorfold.errors import AnchorFoldError, BrokenModelError
from anchorfold.ingestion.progress import WorkerProgress
from tests.cluster.conftest import PAGES
from tests.cluster.contents import contents
from tests.cluster.stand_in import BROKEN, UNREADABLE, ClusterReader
from tests.number_reader import page_image, write_pdf

pytestmark = pytest.mark.slow


def test_two_nodes_write_the_same_rows_as_one_process(cluster, make_index, documents):
    (documents / "bad.pdf").write_text("nonsense")
    page_image(5).save(documents / "picture.png")
    write_pdf(documents / "unreadable.pdf", [1, UNREADABLE, 3])
    alone, together = make_index("alone"), make_index("together")
    expected = alone.add(documents)
    last = []
    report = together.add(documents, cluster=cluster, progress=lambda p: last.append((p.share, list(p.workers))))
    assert contents(together) == contents(alone)
    assert len(contents(together)) == PAGES + 3
    assert sorted(report.skipped) == sorted(expected.skipped)
    assert (report.pages, report.vectors, report.added) == (expected.pages, expected.vectors, expected.added)
    shares = [share for share, _ in last]
    assert shares == sorted(shares)
    assert sum(worker.pages for worker in last[-1][1]) == report.pages
    assert together.search("page 233", top_k=1)[0].page == 34
    # A second run reads what could not be encoded again, and nothing else; a changed document replaces the old one.
    write_pdf(documents / "3.pdf", [400, 401])
    again = together.add(documents, cluster=cluster)
    assert (again.changed, again.pages) == (1, 2)
    alone.add(documents)
    assert contents(together) == contents(alone)


def test_a_long_document_is_split_and_a_slow_committer_pauses_workers(nodes, make_index, tmp_path):
    path = write_pdf(tmp_path / "long.pdf", [100 + number % 400 for number in range(800)])
    index = make_index()
    workers: list[WorkerProgress] = []
    ahead: list[int] = []

    def progress(state):
        workers[:] = state.workers
        ahead.append(sum(worker.pages for worker in workers) - state.pages)

    both = lambda: len(workers) == 2 and all(worker.pages for worker in workers)  # noqa: E731
    report = index.add(path, cluster=Cluster(nodes.address, task_pages=8), progress=progress, stop=both)
    assert both(), "one worker did it all"
    assert report.interrupted
    assert 0 < len(contents(index)) == report.pages < 800
    # Results that wait are at most those of the tasks in flight: two a worker.
    assert max(ahead) <= 4 * 8


def test_documents_without_shared_storage_are_transferred_in_chunks(nodes, make_index, documents, tmp_path):
    noise = np.random.default_rng(1).integers(0, 255, (2000, 3000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(documents / "large.tiff")
    assert (documents / "large.tiff").stat().st_size > 2 * 8_000_000
    alone, together = make_index("alone"), make_index("together")
    alone.add(documents)
    together.add(documents, cluster=Cluster(nodes.address, workers=1, shared=False))
    assert contents(together) == contents(alone)
    assert together.add(documents).unchanged == 11


def test_stopping_commits_running_tasks(one_worker, make_index, documents):
    index = make_index()
    seen = []
    report = index.add(
        documents, cluster=one_worker, progress=lambda p: seen.append(p.pages), stop=lambda: len(seen) > 20
    )
    assert report.interrupted
    stored = contents(index)
    assert 20 <= report.pages == len(stored) < PAGES
    assert index.add(documents).pages == PAGES - report.pages  # a local run resumes a cluster run
    assert len(contents(index)) == PAGES


def test_a_document_that_changes_during_the_run_is_read_again(one_worker, make_index, tmp_path):
    path = write_pdf(tmp_path / "a.pdf", list(range(100, 160)))
    index = make_index()
    index.add(path, cluster=one_worker, progress=lambda p: write_pdf(path, [7, 8, 9]) if p.pages == 8 else None)
    assert [page for _, page in contents(index)] == [1, 2, 3]
    assert index.search("page 8", top_k=1)[0].page == 2


def test_a_broken_or_different_model_ends_the_run_with_an_error(one_worker, make_index, documents, tmp_path):
    index = make_index()
    index.add(documents)
    write_pdf(documents / "broken.pdf", [BROKEN])
    with pytest.raises(BrokenModelError, match=r"^the stand-in is broken\.$"):
        index.add(documents, cluster=one_worker)
    assert len(contents(index)) == PAGES

    class Other(ClusterReader):
        fingerprint = "another"

    from anchorfold import Index, Pooling1D

    other = Index.create(tmp_path / "other", Other(), Pooling1D(ratio=0.25))
    with pytest.raises(BrokenModelError, match="was created with another model"):
        other.add(documents, cluster=one_worker)


@pytest.mark.parametrize(("address", "sentence"), [("127.0.0.1:1", "nothing answers"), ("nonsense", "no address")])
def test_unreachable_cluster(monkeypatch, make_index, documents, address, sentence):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(AnchorFoldError, match=sentence):
        make_index().add(documents, cluster=Cluster(address))


def test_invalid_cluster_sizes_are_an_error():
    impossible: list[dict[str, Any]] = [{"workers": 0}, {"cpus": 0, "gpus": 0}, {"cpus": -1}, {"task_pages": 0}]
    for wrong in impossible:
        with pytest.raises(AnchorFoldError, match=r"at least 1|needs a CPU"):
            Cluster(**wrong)
