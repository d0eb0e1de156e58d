"""Tasks out, results in, without Ray: ranges, blame, and documents that change."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from anchorfold.cluster import work as driver
from anchorfold.cluster.crew import CrewSize
from anchorfold.cluster.tasks import PackedPages, PageProblem, PartResult, TaskResult
from anchorfold.documents.content import CHANGED, FileIdentity
from anchorfold.documents.files import Document
from anchorfold.documents.rendering import DocumentFinished, PageFailed, PagesCounted, Request
from anchorfold.index.source import PageEncoded, PageLeftOut
from anchorfold.index.store.records import PageText
from anchorfold.page import EncodedPage, PatchGrid

Work: Any = driver.Work  # tests know when there is a next task
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


def result(numbers, total, rest=(), identity=IDENTITY, **more) -> PartResult:
    return PartResult(identity, total, packed(*numbers), rest=rest, **more)


def test_packing_keeps_pages_as_they_are():
    pages = [(7, page(7), b"a", PageText("said")), (9, page(9), b"", None)]
    for (number, before, thumbnail, text), after in zip(pages, PackedPages.pack(pages).unpack(), strict=True):
        assert (after[0], after[2], after[3]) == (number, thumbnail, text)
        assert after[1].grid == before.grid
        for name in ("vectors", "anchors", "groups", "weights"):
            assert torch.equal(getattr(after[1], name), getattr(before, name))
    assert PackedPages.pack([]) is None


def test_a_long_document_is_split_and_finished_after_all_of_its_ranges():
    work = Work([Request(document("a"))], pages=8)
    first = work.next_task(workers=2, idle=True)
    assert [part.pages for part in first.parts] == [None]
    assert work.next_task(2, True) is None
    events = work.take(first, done(result(range(8), 30, rest=range(8, 30))), workers=2)
    assert events[0] == PagesCounted(document("a"), 30)
    assert [e.number for e in events[1:]] == list(range(8))
    tasks = [work.next_task(2, False) for _ in range(4)]
    assert [task.parts[0].pages for task in tasks] == [
        tuple(range(8, 14)), tuple(range(14, 20)), tuple(range(20, 26)), tuple(range(26, 30)),
    ]  # fmt: skip
    for task in reversed(tasks[1:]):
        events = work.take(task, done(result(task.parts[0].pages, 0)), 2)
        assert {type(event) for event in events} == {PageEncoded}
    assert work.left
    events = work.take(tasks[0], done(result(tasks[0].parts[0].pages, 0)), 2)
    assert events[-1] == DocumentFinished(document("a"), IDENTITY, None)
    assert not work.left


def test_small_documents_go_together_and_what_was_not_begun_comes_back():
    work = Work([Request(document(str(n))) for n in range(100)], pages=8)
    task = work.next_task(2, True)
    assert [part.document.name for part in task.parts] == list("01234567")
    work.take(task, done(*[result([0], 1) for _ in range(3)]), 2)
    assert [part.document.name for part in work.next_task(2, True).parts] == ["3", "4", "5", "6", "7", "8", "9", "10"]


def test_the_last_documents_are_shared():
    work = Work([Request(document(str(n))) for n in range(6)], pages=8)
    assert len(work.next_task(3, True).parts) == 1


def test_problems_of_pages_and_documents():
    work = Work([Request(document("a")), Request(document("b"))], pages=8)
    first, second = work.next_task(1, True), work.next_task(1, True)
    problems = [PageProblem(0, "torn"), PageProblem(1, "odd", again=True)]
    events = work.take(first, done(PartResult(IDENTITY, 2, None, problems)), 1)
    assert [type(event) for event in events] == [PagesCounted, PageFailed, PageLeftOut, DocumentFinished]
    assert work.take(second, done(PartResult(None, 0, problem="not a PDF")), 1) == [
        DocumentFinished(document("b"), None, "not a PDF")
    ]


def test_a_part_that_loses_workers_is_tried_alone_and_given_up_the_third_time():
    work = Work([Request(document("a")), Request(document("b"))], pages=8)
    task = work.next_task(1, True)
    assert [part.document.name for part in task.parts] == ["a"]
    other = work.next_task(1, False)
    assert not task.alone
    assert work.lose(task, "bad", died=True) == work.lose(other, "bad", died=True) == []
    assert work.next_task(1, idle=False) is None  # suspects want a worker of their own
    again = work.next_task(1, idle=True)
    assert again.alone
    assert work.lose(again, "bad", died=True) == []
    innocent = work.next_task(1, idle=True)
    assert work.take(innocent, done(result([0], 1)), 1)[-1].problem is None
    last = work.next_task(1, idle=True)
    assert work.lose(last, "bad", died=True) == [DocumentFinished(document("a"), None, "bad")]
    assert not work.left


def test_parts_beside_one_that_fails_are_not_blamed():
    work = Work([Request(document(str(n))) for n in range(4)], pages=8)
    task = work.next_task(1, True)
    assert len(task.parts) == 2
    work.lose(task, "odd", died=False)
    assert [attempt.losses for attempt in task.attempts] == [0, 0]
    for count in range(3):
        attempt = work.next_task(1, idle=True)
        assert attempt.parts[0].document.name == "01"[count % 2]
        events = work.lose(attempt, "odd", died=False) if count != 1 else work.take(attempt, done(result([0], 1)), 1)
    assert events == []
    assert work.lose(work.next_task(1, idle=True), "odd", died=False)[-1].problem == "odd"


def test_ranges_of_a_document_that_is_given_up_are_not_begun_and_those_under_way_are_waited_for():
    work = Work([Request(document("a"))], pages=8)
    work.take(work.next_task(1, True), done(result(range(8), 40, rest=range(8, 40))), 1)
    first, second = work.next_task(1, True), work.next_task(1, False)
    other = FileIdentity("1" * 32, 10, 21)
    assert work.take(first, done(result(first.parts[0].pages, 0, identity=other)), 1) == []
    assert work.next_task(1, True) is None
    events = work.take(second, done(result(second.parts[0].pages, 0)), 1)
    assert events[-1] == DocumentFinished(document("a"), IDENTITY, CHANGED)


@pytest.mark.parametrize(("workers", "cpus", "gpus", "wanted"), [
    (None, 1, 0, 12), (None, 2, 0, 6), (None, 1, 1, 2), (None, 1, 0.5, 4), (3, 1, 0, 3), (None, 100, 0, 1),
])  # fmt: skip
def test_as_many_workers_as_there_is_room_for(workers, cpus, gpus, wanted):
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert CrewSize(workers, cpus, gpus).wanted(nodes) == wanted


def test_memory_does_not_grow_with_the_pages_of_a_document():
    """The queue of a million pages is ranges of numbers; no result stays."""
    work = Work([Request(document("a"))], pages=16)
    task = work.next_task(2, True)
    work.take(task, done(result(range(16), 20_000, rest=range(16, 20_000))), 2)
    tracemalloc.start()
    while (task := work.next_task(2, True)) is not None:
        work.take(task, done(result(task.parts[0].pages, 0)), 2)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1_000_000
