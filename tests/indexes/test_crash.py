"""Real processes killed at random moments: nothing that was committed is lost, nothing is stored twice."""

import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from anchorfold import AnchorFold, Index
from anchorfold.ingestion import ingest
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.storage.checking import check
from tests import forked
from tests.number_reader import NumberReader, write_pdf
from tests.storage.page_rows import all_pages, live_pages, vector_files

KILLS = 12


def work(documents: Path, index: Path, connection: Connection) -> None:
    """Run in a process until it is killed: sends when it starts to add, and the number of pages that it added."""
    ingest.COMMIT_PAGES = 3
    opened = Index.open_or_create(index, NumberReader(0.004), AnchorFold(ratio=0.5))
    connection.send(None)
    connection.send(opened.add(documents).pages)


def start(documents: Path, index: Path):
    """The process, and the connection that it sends to."""
    ours, theirs = forked.Pipe(duplex=False)
    process = forked.start(work, documents, index, theirs)
    theirs.close()
    return process, ours


def pages_added(connection: Connection) -> int | None:
    """The number of pages that were added; None if the process was killed before its end."""
    try:
        return connection.recv() or connection.recv()
    except EOFError:
        return None


def contents(index: Path) -> list[tuple[str, int, str]]:
    assert check(index) == []
    return live_pages(EmbeddedStore.open(index))


def kill_until_done(documents: Path, index: Path, rng: random.Random, verify) -> int:
    for kills in range(KILLS + 1):
        process, connection = start(documents, index)
        if kills < KILLS:
            if rng.random() < 0.8:
                connection.poll(60)
            time.sleep(rng.uniform(0, 0.35))
            process.kill()
        finished = pages_added(connection) is not None
        process.join()
        if (index / "index.db").exists():
            verify(contents(index))
        if finished:
            return kills
    raise AssertionError("the last run was not killed and did not finish")


@pytest.mark.parametrize("seed", [1, 2])
def test_an_index_survives_kills_and_is_finished_by_the_same_command(tmp_path, seed):
    for d in range(6):
        write_pdf(tmp_path / f"docs/{d}.pdf", list(range(100 * d, 100 * d + 15)))
    before: set[tuple[str, int, str]] = set()

    def nothing_lost_and_nothing_twice(rows):
        assert len({(d, p) for d, p, _ in rows}) == len(rows)
        assert before <= set(rows)
        before.update(rows)

    kill_until_done(tmp_path / "docs", tmp_path / "my.index", random.Random(seed), nothing_lost_and_nothing_twice)
    assert len(contents(tmp_path / "my.index")) == 90
    store = EmbeddedStore.open(tmp_path / "my.index")
    assert store.read(LivePages.of).allowed.sum() == 90
    assert all_pages(store) == live_pages(store)
    assert sorted(os.listdir(store.folder)) == ["index.db", "vectors", "writer.lock"]
    assert vector_files(store) == [f"{n:08}.seg" for n in store.read(lambda snapshot: snapshot.files)]
    assert store.incomplete_pages() == {}
    texts = "SELECT count(*) FROM texts"
    assert store.read(lambda snapshot: snapshot.connection.execute(texts).fetchone()) == (90,)


def test_a_document_is_replaced_in_one_commit_whenever_the_writer_dies(tmp_path):
    index = tmp_path / "my.index"
    path = write_pdf(tmp_path / "docs/a.pdf", list(range(40)))
    process, connection = start(tmp_path / "docs", index)
    assert pages_added(connection) == 40
    process.join()
    (old,) = {digest for _, _, digest in contents(index)}
    write_pdf(path, list(range(500, 530)))
    seen = set()

    def old_or_new(rows):
        (digest,) = {d for _, _, d in rows}
        assert len(rows) == (40 if digest == old else 30)
        seen.add(digest)

    kills = kill_until_done(tmp_path / "docs", index, random.Random(3), old_or_new)
    assert len(contents(index)) == 30
    assert kills > 0
    assert old in seen
