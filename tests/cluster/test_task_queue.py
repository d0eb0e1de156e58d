"""Task queue without Ray: page ranges, failures, and documents that change."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anchorfold.cluster.sharded_index import ShardSearch
from anchorfold.cluster.task_queue import TaskQueue
from anchorfold.cluster.worker_messages import FailedPage, PackedPages, PartResult, TaskResult
from anchorfold.cluster.worker_pool import PoolSize
from anchorfold.documents.files import Document
from anchorfold.documents.formats import CHANGED, FileIdentity
from anchorfold.documents.render_events import DocumentFinished, PageFailed, RenderRequest
from anchorfold.errors import UnavailableError
from anchorfold.ingestion.encoded_pages import EncodingFailed, PageEncoded
from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.storage.records import PageText

Queue: Any = TaskQueue  # skips None checks of `next_task`
IDENTITY = FileIdentity("0" * 32, 10, 20)


def document(name: str) -> Document:
    return Document(name, Path("/docs") / name, 10, 20)


def page(number: int) -> EncodedPage:
    groups = torch.tensor([0, 0, 1, -1])
    return EncodedPage(
        torch.full((2, 3), float(number)), torch.tensor([0, 2]), groups, torch.rand(4), PatchGrid.single(2, 2)
    )


def packed(*numbers: int) -> PackedPages | None:
    return PackedPages.pack([(number, page(number), b"thumbnail", None) for number in numbers])


def done(*results: PartResult) -> TaskResult:
    return TaskResult(list(results), 1.0)


def result(numbers, total, remaining=(), identity=IDENTITY, **more) -> PartResult:
    return PartResult(identity, total, packed(*numbers), remaining=remaining, **more)


def test_unpacked_pages_equal_the_packed_ones():
    pages = [(7, page(7), b"a", PageText("text")), (9, page(9), b"", None)]
    for (number, before, thumbnail, text), after in zip(pages, PackedPages.pack(pages).unpack(), strict=True):
        assert (after[0], after[2], after[3]) == (number, thumbnail, text)
        assert after[1].grid == before.grid
        for name in ("vectors", "anchors", "groups", "weights"):
            assert torch.equal(getattr(after[1], name), getattr(before, name))
    assert PackedPages.pack([]) is None


def test_a_long_document_finishes_after_all_of_its_ranges():
    tasks = Queue([RenderRequest(document("a"))], pages=8)
    first = tasks.next_task(workers=2, idle=True)
    assert [part.pages for part in first.parts] == [None]
    assert tasks.next_task(2, True) is None
    events = tasks.complete(first, done(result(range(8), 30, remaining=range(8, 30))), workers=2)
    assert [e.number for e in events] == list(range(8))
    assert {e.total for e in events} == {30}
    ranges = [tasks.next_task(2, False) for _ in range(4)]
    assert [task.parts[0].pages for task in ranges] == [
        tuple(range(8, 14)), tuple(range(14, 20)), tuple(range(20, 26)), tuple(range(26, 30)),
    ]  # fmt: skip
    for task in reversed(ranges[1:]):
        events = tasks.complete(task, done(result(task.parts[0].pages, 0)), 2)
        assert {type(event) for event in events} == {PageEncoded}
    assert tasks.unfinished
    events = tasks.complete(ranges[0], done(result(ranges[0].parts[0].pages, 0)), 2)
    assert events[-1] == DocumentFinished(document("a"), IDENTITY, None)
    assert not tasks.unfinished


def test_small_documents_are_batched_and_unstarted_ones_requeued():
    tasks = Queue([RenderRequest(document(str(n))) for n in range(100)], pages=8)
    task = tasks.next_task(2, True)
    assert [part.document.name for part in task.parts] == list("01234567")
    tasks.complete(task, done(*[result([0], 1) for _ in range(3)]), 2)
    assert [part.document.name for part in tasks.next_task(2, True).parts] == ["3", "4", "5", "6", "7", "8", "9", "10"]


def test_the_last_documents_are_distributed_over_workers():
    tasks = Queue([RenderRequest(document(str(n))) for n in range(6)], pages=8)
    assert len(tasks.next_task(3, True).parts) == 1


def test_failed_pages_and_documents():
    tasks = Queue([RenderRequest(document("a")), RenderRequest(document("b"))], pages=8)
    first, second = tasks.next_task(1, True), tasks.next_task(1, True)
    problems = [FailedPage(0, "torn"), FailedPage(1, "odd", retry=True)]
    events = tasks.complete(first, done(PartResult(IDENTITY, 2, None, problems)), 1)
    assert [type(event) for event in events] == [PageFailed, EncodingFailed, DocumentFinished]
    assert tasks.complete(second, done(PartResult(None, 0, problem="not a PDF")), 1) == [
        DocumentFinished(document("b"), None, "not a PDF")
    ]


def test_a_part_that_ends_workers_runs_alone_and_is_skipped_after_three_failures():
    tasks = Queue([RenderRequest(document("a")), RenderRequest(document("b"))], pages=8)
    task = tasks.next_task(1, True)
    assert [part.document.name for part in task.parts] == ["a"]
    other = tasks.next_task(1, False)
    assert not task.exclusive
    assert tasks.fail(task, "bad", worker_died=True) == tasks.fail(other, "bad", worker_died=True) == []
    assert tasks.next_task(1, idle=False) is None  # suspects need an idle worker
    again = tasks.next_task(1, idle=True)
    assert again.exclusive
    assert tasks.fail(again, "bad", worker_died=True) == []
    valid = tasks.next_task(1, idle=True)
    assert tasks.complete(valid, done(result([0], 1)), 1)[-1].problem is None
    last = tasks.next_task(1, idle=True)
    assert tasks.fail(last, "bad", worker_died=True) == [DocumentFinished(document("a"), None, "bad")]
    assert not tasks.unfinished


def test_other_parts_of_a_failed_task_are_not_counted_as_failures():
    tasks = Queue([RenderRequest(document(str(n))) for n in range(4)], pages=8)
    task = tasks.next_task(1, True)
    assert len(task.parts) == 2
    tasks.fail(task, "odd", worker_died=False)
    assert [attempt.failures for attempt in task.attempts] == [0, 0]
    for count in range(3):
        attempt = tasks.next_task(1, idle=True)
        assert attempt.parts[0].document.name == "01"[count % 2]
        events = (
            tasks.fail(attempt, "odd", worker_died=False)
            if count != 1
            else tasks.complete(attempt, done(result([0], 1)), 1)
        )
    assert events == []
    assert tasks.fail(tasks.next_task(1, idle=True), "odd", worker_died=False)[-1].problem == "odd"


def test_queued_ranges_of_a_changed_document_are_cancelled_and_running_ones_awaited():
    tasks = Queue([RenderRequest(document("a"))], pages=8)
    tasks.complete(tasks.next_task(1, True), done(result(range(8), 40, remaining=range(8, 40))), 1)
    first, second = tasks.next_task(1, True), tasks.next_task(1, False)
    other = FileIdentity("1" * 32, 10, 21)
    assert tasks.complete(first, done(result(first.parts[0].pages, 0, identity=other)), 1) == []
    assert tasks.next_task(1, True) is None
    events = tasks.complete(second, done(result(second.parts[0].pages, 0)), 1)
    assert events[-1] == DocumentFinished(document("a"), IDENTITY, CHANGED)


@pytest.mark.parametrize(("workers", "cpus", "gpus", "count"), [
    (None, 1, 0, 12), (None, 2, 0, 6), (None, 1, 1, 2), (None, 1, 0.5, 4), (3, 1, 0, 3), (None, 100, 0, 1),
])  # fmt: skip
def test_worker_count(workers, cpus, gpus, count):
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert PoolSize(workers, cpus, gpus).worker_count(nodes) == count


def test_memory_does_not_grow_with_the_pages_of_a_document():
    """The queue contains page ranges; results are not retained."""
    tasks = Queue([RenderRequest(document("a"))], pages=16)
    task = tasks.next_task(2, True)
    tasks.complete(task, done(result(range(16), 20_000, remaining=range(16, 20_000))), 2)
    tracemalloc.start()
    while (task := tasks.next_task(2, True)) is not None:
        tasks.complete(task, done(result(task.parts[0].pages, 0)), 2)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1_000_000


def test_errors_of_shards_contain_no_paths():
    class RayTaskError(Exception):
        cause = OSError("/home/user/secret/my.index/pages.db: no such file")

    def get(_):
        raise RayTaskError(f"Traceback: /home/user/venv/shard.py: {RayTaskError.cause}")

    search = ShardSearch.__new__(ShardSearch)
    search.ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayTaskError=RayTaskError, RayError=RayTaskError))
    with pytest.raises(UnavailableError, match="a shard failed: OSError") as caught:
        search._result(None)
    assert "/" not in str(caught.value)
