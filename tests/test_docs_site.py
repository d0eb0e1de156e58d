"""The documentation site: Python blocks print the shown output, commands exist, and the site builds."""

import re
import subprocess
import sys
from typing import Any

import pytest
import qdrant_client

import anchorfold
from anchorfold.databases.qdrant_engine import close_local
from tests.test_documentation import BLOCK, ROOT, encoder, run_python, test_commands_in_the_readme_exist  # noqa: F401

PAGES = ["index.md", "tutorial.md", *(f"guides/{path.name}" for path in sorted((ROOT / "docs/guides").glob("*.md")))]
# Blocks that show what is printed.
OUTPUTS = {
    "guides/text.md": 1,
    "guides/filters.md": 1,
    "guides/existing-vectors.md": 3,
    "guides/frameworks.md": 2,
    "guides/extend.md": 1,
}
check_command = test_commands_in_the_readme_exist
del test_commands_in_the_readme_exist  # it runs where it is written


def blocks(name):
    return BLOCK.findall((ROOT / "docs" / name).read_text("utf-8"))


def use_local_mode(folder, monkeypatch):
    """Let clients of any server open an index of reports/ in a folder, in the client's local mode."""
    anchorfold.Index.create(f"qdrant://{folder}/reports").add("reports")
    close_local(str(folder))
    client = qdrant_client.QdrantClient(path=str(folder))
    monkeypatch.setattr(qdrant_client, "QdrantClient", lambda url: client)


@pytest.mark.parametrize("name", [name for name in PAGES if any(language == "python" for language, _ in blocks(name))])
def test_python(name, encoder, report_folder, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(report_folder)
    if name in ("tutorial.md", "guides/filters.md"):  # these create an index
        (tmp_path / "reports").symlink_to(report_folder / "reports")
        monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sentence_transformers.MultiVectorEncoder", lambda _: encoder)  # the real one is downloaded
    if name == "guides/qdrant.md":
        use_local_mode(tmp_path, monkeypatch)
    names: dict[str, Any] = {}
    assert run_python(name, blocks(name), names) == OUTPUTS.get(name, 0)
    if name == "guides/extend.md":
        names["anchorfold"].compressors.COMPRESSORS.unregister("last")


LINES = [
    line
    for name in PAGES
    for language, code in blocks(name)
    if language == "sh"
    for line in code.replace("\\\n", " ").splitlines()
]
COMMANDS = [line for line in LINES if line.startswith("anchorfold ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist(line):
    check_command(line)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/reference/backbones.md"])
def test_source_paths_exist(name):
    paths = re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|js|csv|toml))`", (ROOT / name).read_text("utf-8"))
    missing = [path for path in paths if not ((ROOT / path).exists() or (ROOT / "src/anchorfold" / path).exists())]
    assert paths
    assert missing == []


@pytest.mark.slow
def test_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "compress_vectors" in (tmp_path / "reference" / "vectors" / "index.html").read_text("utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in (tmp_path / "reference" / "index.html").read_text("utf-8")
