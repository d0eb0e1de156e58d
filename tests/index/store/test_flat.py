import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from anchorfold.index.store import flat as module
from anchorfold.index.store.flat import CACHE, open_flat
from anchorfold.index.store.table import PageTable
from tests.index.store.test_schema import row
from tests.number_reader import index_settings


@pytest.fixture
def table(tmp_path):
    made = PageTable.create(tmp_path / "my.index", index_settings())
    made.append([row(p, vectors=1 + p % 4) for p in range(1, 12)])
    made.append([row(12, encoded=None, problem="damaged")])
    return made


def copies(table):
    return [p for p in (table.folder / CACHE).iterdir() if p.is_dir()]


def test_all_live_vectors_sorted_by_length(table):
    flat = open_flat(table)
    assert len(flat) == 11
    assert list(flat.lengths) == sorted(flat.lengths)
    starts = np.concatenate(([0], flat.lengths.cumsum()))
    for i, page in enumerate(flat.pages["page"].to_pylist()):
        expected = row(page, vectors=1 + page % 4).encoded.vectors.numpy()
        assert np.allclose(flat.vectors[starts[i] : starts[i + 1]], expected, atol=1e-3)
    assert np.abs(flat.codes * flat.scale - flat.vectors).max() <= 0.51 * flat.scale


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_vectors_are_the_same_for_who_builds_and_who_opens(tmp_path, dtype, in_memory):
    table = PageTable.create(tmp_path / "t.index", index_settings(dtype=dtype))
    table.append([row(p) for p in range(1, 4)])
    built = module.build(table, None) if in_memory else open_flat(table)
    assert np.array_equal(built.vectors, open_flat(table).vectors)
    assert np.allclose(np.linalg.norm(built.vectors.astype(np.float32), axis=1), 1, atol=1e-2)


def test_it_is_built_once_a_version(table, monkeypatch):
    first = open_flat(table)
    monkeypatch.setattr(module, "build", lambda *_: pytest.fail("built again"))
    assert open_flat(table).version == first.version
    monkeypatch.undo()
    table.append([row(20)])
    assert len(open_flat(table)) == 12
    assert len(copies(table)) == 1


@pytest.mark.parametrize("name", ["vectors.npy", "codes.npy", "lengths.npy", "pages.feather", "about.json"])
def test_a_damaged_copy_is_built_again(table, name):
    open_flat(table)
    (place,) = copies(table)
    (place / name).write_bytes((place / name).read_bytes()[:10])
    assert len(open_flat(table)) == 11


def test_an_index_that_may_only_be_read(table, monkeypatch):
    monkeypatch.setattr(module.tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(PermissionError(13, "denied")))
    flat = open_flat(table)
    assert len(flat) == 11
    assert not copies(table)


def test_an_empty_index(tmp_path):
    assert len(open_flat(PageTable.create(tmp_path / "e.index", index_settings()))) == 0


def test_left_overs_of_a_killed_builder_are_removed(table):
    (table.folder / CACHE / "new-dead").mkdir(parents=True)
    open_flat(table)
    assert [p.name[:4] for p in copies(table)] != ["new-"]
    assert len(copies(table)) == 1


def test_only_one_process_builds_a_version_at_a_time(table, monkeypatch):
    built = []
    real = module.build

    def slow(*arguments):
        built.append(1)
        time.sleep(0.1)
        return real(*arguments)

    monkeypatch.setattr(module, "build", slow)
    threads = [threading.Thread(target=open_flat, args=(table,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]


FULL_DISK = """
import sys
from pathlib import Path
from anchorfold.index.store.flat import open_flat
from anchorfold.index.store.table import PageTable
table = PageTable.open(Path(sys.argv[1]))
filler = open(Path(sys.argv[1]).parent / "filler", "wb")
try:
    while True:
        filler.write(bytes(4096))
        filler.flush()
except OSError:
    pass
flat = open_flat(table)
print(len(flat), float(flat.vectors.astype("float32").sum()), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can mount a small disk")
def test_a_full_disk_neither_kills_the_search_nor_is_left_with_rubbish(table, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], check=True)
    try:
        shutil.copytree(table.folder, disk / "my.index")
        done = subprocess.run(
            [sys.executable, "-c", FULL_DISK, disk / "my.index"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr}"
        expected = open_flat(table).vectors.astype("float32").sum()
        assert done.stdout.split() == ["11", str(float(expected))]
        assert not list((disk / "my.index").rglob("new-*"))
    finally:
        subprocess.run(["umount", disk], check=True)
