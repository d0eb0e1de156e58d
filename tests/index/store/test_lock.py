import os
import subprocess
import sys

import pytest

from anchorfold.errors import LockedError
from anchorfold.index.store.lock import HOLDER_FILE, writer_lock

HOLD = """
import sys, time
from pathlib import Path
from anchorfold.index.store.lock import writer_lock
with writer_lock(Path(sys.argv[1]), 0):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(folder, seconds):
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_told_who_holds_it(tmp_path):
    process = hold(tmp_path, 60)
    try:
        with pytest.raises(LockedError, match=f"process {process.pid} on"), writer_lock(tmp_path, 0):
            pass
    finally:
        process.kill()
        process.wait()


def test_or_waits(tmp_path):
    process = hold(tmp_path, 60)
    notes = []

    def note(text):
        """Say that somebody waits: the holder may go now."""
        notes.append(text)
        process.kill()
        process.wait()

    with writer_lock(tmp_path, -1, note):
        assert process.returncode is not None
    assert str(process.pid) in notes[0]


def test_a_killed_holder_leaves_no_lock(tmp_path):
    process = hold(tmp_path, 60)
    process.kill()
    process.wait()
    with writer_lock(tmp_path, 1):
        assert str(os.getpid()) in (tmp_path / HOLDER_FILE).read_text()
    assert not (tmp_path / HOLDER_FILE).exists()
