"""A sample of the faults of `benchmarks/fault_injection.py`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs LD_PRELOAD and gcc")
def test_an_index_survives_a_fault_at_any_file_operation():
    command = [sys.executable, "-m", "benchmarks.fault_injection", "--sample", "60", "--seed", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "60 faults, 0 violations" in ended.stdout
