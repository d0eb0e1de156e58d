"""Real processes killed at random moments: nothing that was committed is lost, nothing is stored twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anchorfold.index.live import LivePages
from anchorfold.index.store.checking import check
from anchorfold.index.store.table import PageTable
from tests.number_reader import write_pdf

WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.number_reader import NumberReader
from anchorfold.index import ingest
from anchorfold import AnchorFold, Index
ingest.COMMIT_PAGES = 3
index = Index.open_or_create(Path(sys.argv[2]), NumberReader(0.004), AnchorFold(ratio=0.5))
print("ready", flush=True)
report = index.add(Path(sys.argv[1]))
print("done", report.pages, flush=True)
"""
KILLS = 12


def start(documents: Path, index: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", WORKER, str(documents), str(index), str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def contents(index: Path) -> list[tuple[str, int, str]]:
    assert check(index) == []
    return sorted((page.document, page.page, page.version.digest) for page in PageTable.open(index).pages())


def kill_until_done(documents: Path, index: Path, rng: random.Random, check) -> int:
    for kills in range(KILLS + 1):
        process = start(documents, index)
        if kills < KILLS:
            if rng.random() < 0.8:
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.35))
            process.send_signal(signal.SIGKILL)
        finished = "done" in process.stdout.read()
        process.wait()
        if (index / "head").exists():
            check(contents(index))
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
    table = PageTable.open(tmp_path / "my.index")
    assert LivePages(table).allowed.sum() == 90
    assert sorted(os.listdir(table.folder)) == ["head", "logs", "segments", "text.sqlite", "writer.lock"]
    assert len(os.listdir(table.folder / "segments")) == len(table.state.segments)
    assert len(table.texts.numbers()) == 90


def test_a_document_is_replaced_in_one_step_whenever_the_writer_dies(tmp_path):
    index = tmp_path / "my.index"
    path = write_pdf(tmp_path / "docs/a.pdf", list(range(40)))
    process = start(tmp_path / "docs", index)
    assert "done 40" in process.stdout.read()
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
