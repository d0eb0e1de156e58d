"""The documentation site: its Python prints what it says, its commands exist, and it builds without a dead link."""

import subprocess
import sys
from typing import Any

import pytest

from tests.test_documentation import BLOCK, ROOT, encoder, run_python, test_commands_in_the_readme_exist  # noqa: F401

OWN = ["index.md", "how-it-works.md", "compressors.md", *(f"guides/{name}.md" for name in ("search", "text", "filters", "vectors", "agents", "frameworks", "extend"))]  # fmt: skip  # noqa: E501
# Blocks that show what is printed.
OUTPUTS = {
    "guides/text.md": 1,
    "guides/filters.md": 1,
    "guides/vectors.md": 3,
    "guides/frameworks.md": 2,
    "guides/extend.md": 1,
}
check_command = test_commands_in_the_readme_exist
del test_commands_in_the_readme_exist  # it runs where it is written


def blocks(name):
    return BLOCK.findall((ROOT / "docs" / name).read_text("utf-8"))


@pytest.mark.parametrize("name", [name for name in OWN if any(language == "python" for language, _ in blocks(name))])
def test_python(name, encoder, report_folder, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(report_folder)
    if name in ("index.md", "guides/filters.md"):  # it makes an index
        (tmp_path / "reports").symlink_to(report_folder / "reports")
        monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sentence_transformers.MultiVectorEncoder", lambda _: encoder)  # the real one is downloaded
    names: dict[str, Any] = {}
    assert run_python(name, blocks(name), names) == OUTPUTS.get(name, 0)
    if name == "guides/extend.md":
        names["anchorfold"].compressors.COMPRESSORS.unregister("last")


LINES = [line for name in OWN for language, code in blocks(name) if language == "sh" for line in code.splitlines()]
COMMANDS = [line for line in LINES if not line.startswith("pip install ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist(line):
    check_command(line)


def test_the_blocks_are_seen():
    assert len(COMMANDS) >= 10
    assert sum(language == "python" for name in OWN for language, _ in blocks(name)) >= 10


@pytest.mark.slow
def test_it_builds_without_a_dead_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "compress_vectors" in (tmp_path / "reference" / "vectors" / "index.html").read_text("utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in (tmp_path / "reference" / "index.html").read_text("utf-8")
