"""Clients see public names only, never absolute paths; pages of an index without provenance can be read."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from anchorfold import Index, Pooling1D
from anchorfold.errors import AnchorFoldError, UnavailableError
from anchorfold.server.app import create_app
from anchorfold.server.service import IndexService
from tests.number_reader import NumberReader, write_pdf

mcp = pytest.importorskip("mcp")
from anchorfold.server.mcp_server import create_server  # noqa: E402


def create_index(folder, **options):
    index = Index.create(folder / "my.index", NumberReader(), Pooling1D(ratio=0.25), **options)
    index.add(write_pdf(folder / "documents" / "a.pdf", [1, 2]))
    return index


def client_of(index):
    return TestClient(create_app(IndexService(index)), base_url="http://localhost")


def test_page_of_an_index_without_provenance(tmp_path):
    client = client_of(create_index(tmp_path, provenance=False))
    hit = client.get("/api/search", params={"q": "1"}).json()["results"][0]
    page = client.get(f"/api/pages/{hit['id']}")
    assert page.status_code == 200, page.text
    assert (page.json()["document"], page.json()["pages"]) == ("a.pdf", 2)
    assert 0 < page.json()["vectors"] < page.json()["full_vectors"]


def test_damage_is_reported_without_absolute_paths(tmp_path):
    folder = tmp_path / "private folder"
    index = create_index(folder)
    (path,) = (folder / "my.index" / "vectors").glob("*.seg")
    path.unlink()
    response = client_of(Index.open(index.path, NumberReader())).get("/api/search", params={"q": "1"})
    assert response.status_code == 409
    assert "the index" in response.json()["detail"]
    for part in (str(tmp_path), "private folder", "/my.index"):
        assert part not in response.text


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("shard 2 of {folder}/my.index does not respond: try again."),
        UnavailableError("cannot read '{folder}/documents/a.pdf': the node lost /mnt/data/secret/disk.img."),
        AnchorFoldError("{folder}/documents/a.pdf was deleted or changed."),
    ],
)
def test_messages_contain_no_absolute_path(tmp_path, error):
    service = IndexService(create_index(tmp_path))
    message = service.public_message(type(error)(str(error).format(folder=tmp_path)))
    assert str(tmp_path) not in message
    assert "secret" not in message
    assert "a.pdf" in message or "the index" in message


def test_messages_name_documents_of_folders_with_spaces_by_their_public_names(tmp_path):
    index = Index.create(tmp_path / "my.index", NumberReader(), Pooling1D(ratio=0.25))
    path = write_pdf(tmp_path / "a client" / "law (draft)" / "annual report.pdf", [1])
    index.add(path)
    service = IndexService(index)
    error = AnchorFoldError(f"{path} was deleted or changed, and the index contains no thumbnails.")
    message = service.public_message(error)
    assert message == "annual report.pdf was deleted or changed, and the index contains no thumbnails."


def test_messages_contain_no_path_with_spaces(tmp_path, monkeypatch):
    """Of a model, which `anchorfold mcp` loads at the first request, and in errors of the operating system."""
    index = create_index(tmp_path)
    folder = "/home/John Smith/my models/colpali"
    monkeypatch.setattr(type(index), "settings", replace(index.settings, model=folder))
    message = IndexService(index).public_message(
        AnchorFoldError(f"created with the model {folder}, which cannot be loaded: [Errno 2] '{folder} (old)/a b.json'")
    )
    assert message == "created with the model colpali, which cannot be loaded: [Errno 2] 'a b.json'"


def test_absolute_names_do_not_tell_which_files_are_indexed(tmp_path):
    service = IndexService(create_index(tmp_path))
    for folder in ("documents", "elsewhere"):
        error = service.unknown_document(str(tmp_path / folder / "a.pdf"))
        assert service.public_message(error) == "the index contains no document '.../a.pdf'. Similar names: a.pdf."


def test_decomposed_names_are_found_and_never_confused(tmp_path):
    """macOS stores names decomposed; agents write them composed."""
    composed, decomposed = "r\xe9sum\xe9.pdf", "re\N{COMBINING ACUTE ACCENT}sume\N{COMBINING ACUTE ACCENT}.pdf"
    index = Index.create(tmp_path / "my.index", NumberReader(), Pooling1D(ratio=0.25))
    index.add(write_pdf(tmp_path / decomposed, [1]))
    service = IndexService(index)
    for name in (composed, decomposed):
        assert service.find(name, 1).source == str(tmp_path / decomposed)
    index.add(write_pdf(tmp_path / composed, [2]))
    other = f"{tmp_path.name}/{composed}"
    assert set(service.documents()) == {composed, other}
    assert service.find(other, 1).source == str(tmp_path / composed)


def test_similar_pages_have_no_absolute_path(tmp_path):
    index = create_index(tmp_path / "private folder")
    index.add(write_pdf(tmp_path / "another folder" / "b.pdf", [1]))
    client = client_of(index)
    for hit in client.get("/api/search", params={"q": "1"}).json()["results"]:
        response = client.get(f"/api/pages/{hit['id']}/similar")
        assert [similar["metadata"]["folder"] for similar in response.json()] == [".", "."]
        assert str(tmp_path) not in response.text


def test_the_name_of_the_index_is_replaced_as_a_whole_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Index.create("data", NumberReader(), Pooling1D(ratio=0.25))
    service = IndexService(Index.open("data", NumberReader()))
    message = service.public_message(AnchorFoldError("data has no metadata (data/index.db): no data.csv, its-data."))
    assert message == "the index has no metadata (the index/index.db): no data.csv, its-data."


def test_resources_of_a_damaged_index_are_reported_without_absolute_paths(tmp_path):
    index = create_index(tmp_path)
    server = create_server(IndexService(index))
    (index.path / "index.db").write_bytes(b"no database" * 1000)

    async def read():
        async with mcp.Client(server) as client:
            with pytest.raises(mcp.MCPError, match="the index is damaged") as raised:
                await client.read_resource("anchorfold://page/1-1")
            return str(raised.value)

    assert str(tmp_path) not in asyncio.run(read())


def test_heatmap_for_agents_shows_the_public_name(report_folder, monkeypatch):
    from anchorfold.explanation import heatmap
    from anchorfold.server import mcp_server

    drawn: list[Any] = []
    draw = heatmap.draw_explanation

    def record(explanation):
        drawn.append(explanation)
        return draw(explanation)

    monkeypatch.setattr(mcp_server, "draw_explanation", record)
    server = mcp_server.create_server(IndexService(Index.open(report_folder / "my.index")))
    arguments = {"query": "net revenue", "document": "reports/annual.pdf", "page": 2}

    async def explain():
        async with mcp.Client(server) as client:
            return await client.call_tool("explain_match", arguments)

    assert not asyncio.run(explain()).is_error
    assert [explanation.document for explanation in drawn] == ["reports/annual.pdf"]
