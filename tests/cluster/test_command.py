"""`--ray` on the command line: with a real cluster, and without Ray."""

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from anchorfold.cli.app import app, load_commands
from anchorfold.cli.printing import describe_workers
from anchorfold.ingestion.progress import Progress, WorkerProgress
from anchorfold.server.app import create_app
from anchorfold.server.service import IndexService
from tests.cluster.conftest import PAGES
from tests.cluster.contents import contents
from tests.cluster.nodes import Nodes


def start(nodes, *arguments) -> subprocess.Popen:
    command = [sys.executable, "-m", "anchorfold", *map(str, arguments)]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=nodes.environment, text=True, **streams)


@pytest.mark.slow
def test_an_interrupted_run_is_resumed(nodes, make_index, documents):
    index = make_index()
    arguments = ["index", documents, "-o", index.path, "--ray", nodes.address, "--workers", "1", "--json"]
    process = start(nodes, *arguments)
    while not contents(index):
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Stopping after the current batch" in errors
    report = json.loads(output)
    assert report["interrupted"]
    assert 0 < report["pages"] == len(contents(index)) < PAGES
    assert index.add(documents).pages == PAGES - report["pages"]
    assert len(contents(index)) == PAGES


@pytest.mark.slow
def test_search_page_and_api_over_shards(nodes, make_index, documents):
    """More shards than the cluster has processors: they share those."""
    index = make_index()
    index.add(documents)
    process = start(nodes, "serve", index.path, "--ray", nodes.address, "--shards", 3, "--port", 0, "--no-browser")
    try:
        match = re.search(r"http://\S+/", process.stdout.readline())
        assert match, process.stderr.read()
        alone = TestClient(create_app(IndexService(index)), base_url="http://localhost")
        with httpx.Client(base_url=match.group(), timeout=60) as sharded:
            answer = sharded.get("/api/search", params={"q": "page 233"})
            assert answer.status_code == 200, answer.text
            results = answer.json()["results"]
            assert results[0]["page"] == 34
            page = f"/api/pages/{results[0]['id']}"
            for address in (
                "/", "/api/info", "/api/facets", "/api/search?q=page+7", "/api/search?q=page+7&where=page+%3C+3",
                "/api/search?q=page+7&mode=hybrid", page, f"{page}/thumbnail", f"{page}/image",
                f"{page}/evidence?q=page+233", f"{page}/words?q=page+233",
            ):  # fmt: skip
                answers = sharded.get(address), alone.get(address)
                assert [answer.status_code for answer in answers] == [200, 200], address
                assert answers[0].content == answers[1].content, address
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.slow
def test_a_cluster_that_requires_a_token(documents, make_index):
    index = make_index()
    with Nodes(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0123456789abcdef" * 4) as nodes:
        nodes.environment |= {"RAY_AUTH_MODE": "disabled", "RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
        process = start(nodes, "index", documents / "1.pdf", "-o", index.path, "--ray", nodes.address)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "this Ray cluster requires a token: set RAY_AUTH_MODE=token" in " ".join(errors.split())
    assert not contents(index)


@pytest.mark.slow
def test_a_local_cluster_writes_no_token_file(nodes, documents, make_index, tmp_path):
    index = make_index()
    alone = {name: value for name, value in nodes.environment.items() if name != "RAY_AUTH_MODE"}
    arguments = ["index", documents / "1.pdf", "-o", index.path, "--ray", "local", "--workers", 1]
    command = [sys.executable, "-m", "anchorfold", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, env={**alone, "HOME": str(tmp_path / "home")}, timeout=120)
    assert len(contents(index)) == 1
    assert not (tmp_path / "home" / ".ray").exists()


LISTENERS = """
import psutil
from anchorfold.cluster.connection import connection
with connection("local") as ray:
    ray.get(ray.remote(lambda: 1).remote())
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for socket in process.net_connections("inet"):
            if socket.status == psutil.CONN_LISTEN:
                print(socket.laddr.ip.removeprefix("::ffff:"))
"""


@pytest.mark.slow
def test_a_local_cluster_binds_to_loopback_only():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", LISTENERS]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120)
    assert set(run.stdout.split()) == {"127.0.0.1"}


@pytest.mark.parametrize("command", [["index", "docs", "-o", "x.index"], ["serve", "my.index"]])
def test_missing_ray_names_the_extra(monkeypatch, make_index, documents, command):
    make_index()
    monkeypatch.chdir(documents.parent)
    monkeypatch.setitem(sys.modules, "ray", None)
    load_commands()
    outcome = CliRunner().invoke(app, [*command, "--ray", "auto"])
    assert str(outcome.exception) == "a cluster needs Ray: pip install 'anchorfold[ray]'."
    assert not os.path.exists("x.index")


@pytest.mark.slow
def test_everything_else_works_without_ray(documents):
    script = "import sys; sys.modules['ray'] = None; from anchorfold.cli.app import main; main()"
    command = [sys.executable, "-c", script, "index", str(documents / "1.pdf"), "-o", str(documents / "my.index")]
    subprocess.run(command, check=True, capture_output=True)


def test_progress_line_describes_workers():
    workers = [
        WorkerProgress("a:1", 20, 10.0),
        WorkerProgress("b:2", 40, 10.0),
        WorkerProgress("c:3", 5, 5.0, dead=True),
    ]
    assert describe_workers(Progress(workers=workers)) == ["2 workers, 3.00 pages/s each", "lost: c:3"]
    assert describe_workers(Progress()) == []
    many = [WorkerProgress(f"a:{number}", dead=True) for number in range(5)]
    assert describe_workers(Progress(workers=many))[-1] == "lost: a:2, a:3, a:4 and 2 more"
