"""A small run of the fuzzer, and checks that it detects violations."""

import re
import subprocess
import sys

import pytest

from anchorfold.documents import render_process
from anchorfold.documents.formats import open_document
from benchmarks.damaged_files import damaged, seeds
from benchmarks.fuzz_renderer import MEGABYTE, fuzz
from tests.documents.test_render_process import COMPROMISED


def test_seed_files_are_intact(tmp_path):
    count = 0
    for number, (suffix, content) in enumerate(seeds()):
        (tmp_path / f"{number}.{suffix}").write_bytes(content)
        with open_document(tmp_path / f"{number}.{suffix}") as pages:
            for page in range(len(pages)):
                assert len(set(pages.image(page).resize((8, 8)).get_flattened_data())) > 1, (number, suffix, page)
                count += 1
    assert count == 38


def test_reproducible_by_seed():
    def files(seed):
        originals = seeds()
        return [damaged(number, seed, originals) for number in range(50)]

    assert files(1) == files(1) != files(2)


def test_damaged_files():
    command = [sys.executable, "-m", "benchmarks.fuzz_renderer", "--files", "150", "--seed", "3"]
    completed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "\n0 violations\n" in completed.stdout
    pages_rendered, pages_failed, documents_failed = (
        int(re.search(rf"(\d+) {what}", completed.stdout).group(1))
        for what in ("pages rendered", "pages failed", "documents failed")
    )
    assert pages_rendered > 50
    assert pages_failed > 20
    assert documents_failed > 20


@pytest.mark.parametrize(
    ("evil", "noticed"),
    [
        ("raise TypeError", "exit 1"),
        ("self.send('page_failed', page=0, reason='x')", "invalid message"),
        ("self.send('document_failed', reason='TypeError: dimensions'); return", "TypeError"),
        ("self.send('opened', pages=1, digest='0' * 32, size=1, modified=1); "
         "self.send('page_failed', page=0, reason='x'); return", "other bytes"),
    ],
)  # fmt: skip
def test_violations_are_detected(tmp_path, monkeypatch, evil, noticed):
    (tmp_path / "child.py").write_text(COMPROMISED.replace("evil.pdf", "7.png").format(evil=evil))
    monkeypatch.setattr(render_process, "COMMAND", [sys.executable, str(tmp_path / "child.py")])
    violations = fuzz(9, seed=3, memory=512 * MEGABYTE, seconds=10.0).violations
    assert violations
    assert all(noticed in violation and violation.startswith("7.png") for violation in violations)
