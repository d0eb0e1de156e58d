"""New interpreters without optional dependencies, and without POSIX modules."""

import json
import subprocess
import sys

import pytest

OPTIONAL = [
    "datasets", "fastapi", "fpdf", "ir_measures", "lancedb", "langchain_core", "llama_index", "matplotlib", "mcp",
    "mteb", "peft", "pyarrow", "qdrant_client", "rapidocr", "ray", "scipy", "sentence_transformers", "sklearn",
    "uvicorn",
]  # fmt: skip
RUN = """
import contextlib, io, json, sys
import anchorfold
from anchorfold.cli.app import main

names = {name: getattr(anchorfold, name) for name in anchorfold.__all__}
results = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["anchorfold", *arguments]
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as exit:
            code = exit.code
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
BLOCK = "import sys; sys.modules.update(dict.fromkeys({names!r}))\n"  # None: it cannot be imported
# Libraries are imported first, as the system they were installed for.
WINDOWS = """
import os, select, signal, subprocess, sys
import filelock, numpy, PIL.Image, platformdirs, pypdfium2, rich.console, rich.progress, rich.table, safetensors.torch
import sqlglot, torch, transformers, transformers.modeling_utils, transformers.utils.logging, typer
assert not [name for name in sys.modules if name.startswith("anchorfold")]
for module, names in {
    os: "fork forkpty sysconf major minor sched_getaffinity readv writev pread preadv set_blocking getuid geteuid "
    "killpg setsid mkfifo statvfs posix_fadvise copy_file_range sendfile fchmod chown getloadavg",
    select: "poll epoll", signal: "alarm setitimer SIGALRM SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGCHLD pthread_sigmask",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"
"""
POSIX_ONLY = ["fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"]


def run(prelude, *commands, cwd):
    program = [sys.executable, "-c", prelude + RUN, json.dumps(commands)]
    done = subprocess.run(program, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_missing_extras_are_one_sentence(report_folder, tmp_path):
    (tmp_path / "vectors.parquet").write_bytes(b"PAR1")
    (tmp_path / "vectors.lance").mkdir()
    index = str(report_folder / "my.index")
    ratio = ["--method", "semantic-clustering", "--ratio", "0.5"]
    works = [["--help"], ["methods"], ["models"], ["info", index], ["search", index, "revenue"], ["search", index, "revenue", "--where", "page < 9"]]  # fmt: skip  # noqa: E501
    fails = {
        "ward": ["index", str(report_folder / "reports"), "-o", "ward.index", "--method", "ward"],
        "parquet": ["export", index, "--format", "parquet"],
        "qdrant": ["export", index, "--format", "qdrant", "--url", "http://127.0.0.1:9"],
        "lance": ["compress", "vectors.lance", "-o", "lance.index", *ratio],
        "serve": ["serve", index],
        "mcp": ["mcp", index],
        "demo": ["demo"],
    }
    parquet = ["compress", "vectors.parquet", "-o", "parquet.index", *ratio]
    results = run(BLOCK.format(names=OPTIONAL), *works, *fails.values(), parquet, cwd=tmp_path)
    assert [code for code, _, _ in results[: len(works)]] == [0] * len(works)
    for extra, (code, _, err) in zip([*fails, "parquet"], results[len(works) :], strict=True):
        assert code == 1
        assert " ".join(err.split()).endswith(f"pip install 'anchorfold[{extra}]'.")


@pytest.mark.slow
def test_windows_can_import_and_search(report_folder, tmp_path):
    """A simulation: modules, functions and constants that Windows lacks are removed."""
    index, reports = str(report_folder / "my.index"), str(report_folder / "reports")
    commands = [["--help"], ["methods"], ["info", index], ["search", index, "revenue"], ["index", reports, "-o", "new.index"]]  # fmt: skip  # noqa: E501
    *works, (code, _, err) = run(WINDOWS + BLOCK.format(names=POSIX_ONLY), *commands, cwd=tmp_path)
    assert [code for code, _, _ in works] == [0] * len(works)
    assert code == 1, err
    assert "Linux or macOS is required" in err
