"""The writer lock: one writer at a time, released when its holder dies."""

import os
import shutil
import subprocess
import sys

import pytest

from anchorfold.errors import LockedError, NotAnIndexError
from anchorfold.storage.lock import HOLDER_FILE, LOCK_FILE, holder, writer_lock

HOLD = """
import sys, time
from pathlib import Path
from anchorfold.storage.lock import writer_lock
with writer_lock(Path(sys.argv[1]), 0):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(folder, seconds=60):
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def end(process):
    process.kill()
    process.wait()


def test_a_second_writer_is_told_who_holds_the_lock(tmp_path):
    process = hold(tmp_path)
    try:
        with (
            pytest.raises(LockedError, match=rf"process {process.pid} on .* is writing to .*: try again later"),
            writer_lock(tmp_path, 0),
        ):
            pass
    finally:
        end(process)


def test_a_second_writer_can_wait(tmp_path):
    process = hold(tmp_path)
    notes = []

    def note(text):
        """Called when the other writer waits: the holder may end now."""
        notes.append(text)
        end(process)

    with writer_lock(tmp_path, -1, note):
        assert process.returncode is not None
    assert str(process.pid) in notes[0]
    assert len(notes) == 1


def test_waiting_can_be_stopped(tmp_path):
    process = hold(tmp_path)
    polls = iter([False, False, True, True])
    try:
        with pytest.raises(LockedError), writer_lock(tmp_path, -1, stop=polls.__next__):
            pass
    finally:
        end(process)


def test_a_killed_holder_leaves_no_lock(tmp_path):
    end(hold(tmp_path))
    with writer_lock(tmp_path, 1):
        assert str(os.getpid()) in (tmp_path / HOLDER_FILE).read_text()
    assert not (tmp_path / HOLDER_FILE).exists()


def test_an_unknown_holder(tmp_path):
    assert holder(tmp_path) == "another process"
    (tmp_path / HOLDER_FILE).write_text("{")
    assert holder(tmp_path) == "another process"


def test_a_folder_that_does_not_exist_is_not_created(tmp_path):
    with pytest.raises(NotAnIndexError, match="no longer exists"), writer_lock(tmp_path / "nowhere", 0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_folder_that_was_created_again_is_another_one(tmp_path):
    folder = tmp_path / "my.index"
    folder.mkdir()
    process = hold(folder)

    def recreate(_):
        shutil.rmtree(folder)
        folder.mkdir()
        end(process)

    with writer_lock(folder, -1, recreate):
        assert (folder / LOCK_FILE).exists()
        again = subprocess.run([sys.executable, "-c", HOLD, folder, "0"], capture_output=True, text=True, check=False)
        assert "LockedError" in again.stderr
