"""MCP server in a separate process, over both transports, with the client of the SDK."""

import asyncio
import base64
import io
import json
import os
import re
import subprocess
import sys

import pytest
from PIL import Image

mcp = pytest.importorskip("mcp")
QUERY = "net revenue by region"


def command(*more):
    return [sys.executable, "-m", "anchorfold", "mcp", "my.index", *more]


@pytest.fixture(scope="module")
def address(report_folder):
    """A server on a free port."""
    process = subprocess.Popen(command("--http", "--port", "0"), cwd=report_folder, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    yield re.search(r"http://\S+/mcp", line).group()
    process.terminate()
    assert process.wait(10) in (0, -15)


@pytest.fixture(params=["stdio", "http"])
def server(request, report_folder):
    """What a client connects to."""
    if request.param == "http":
        return request.getfixturevalue("address")
    program, *arguments = command()
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "HOME", "OMP_NUM_THREADS")}
    return mcp.StdioServerParameters(command=program, args=arguments, cwd=report_folder, env=environment)


def ask(server, conversation):
    async def talk():
        async with mcp.Client(server) as client:
            return await conversation(client)

    return asyncio.run(asyncio.wait_for(talk(), 180))


def test_all_tools_and_resources(server):
    """Everything in one process: starting one takes longer than asking."""

    async def conversation(client):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "search", "similar_pages", "list_columns", "list_documents", "page_image", "page_text", "explain_match",
        }  # fmt: skip
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert all(tool.description and tool.title for tool in tools.values())

        answer = await client.call_tool("search", {"query": QUERY, "top_k": 2})
        hits = answer.structured_content["result"]
        assert (hits[0]["document"], hits[0]["page"]) == ("reports/annual.pdf", 2)
        assert len(hits) == 2
        assert hits[0]["score"] > hits[1]["score"]
        only = await client.call_tool("search", {"query": QUERY, "document": "*.png"})
        assert {hit["document"] for hit in only.structured_content["result"]} == {"reports/scan.png"}

        best = await client.call_tool("search", {"query": QUERY, "per_document": True})
        documents = [hit["document"] for hit in best.structured_content["result"]]
        assert documents == ["reports/annual.pdf", "reports/scan.png"]
        similar = await client.call_tool("similar_pages", {"document": "reports/annual.pdf", "page": 2, "top_k": 1})
        (other,) = similar.structured_content["result"]
        assert (other["document"], other["page"]) != ("reports/annual.pdf", 2)

        columns = (await client.call_tool("list_columns", {})).structured_content["result"]
        assert {"column": "kind", "type": "text", "values": ["pdf", "png"]} in columns
        left = await client.call_tool("search", {"query": QUERY, "filter": "kind = 'pdf' and page = 1"})
        (hit,) = left.structured_content["result"]
        assert (hit["document"], hit["page"], hit["metadata"]["pages"]) == ("reports/annual.pdf", 1, 2)
        slip = await client.call_tool("search", {"query": QUERY, "filter": "yaer = 1"})
        assert slip.is_error
        assert "there is no column 'yaer': the columns are document (text)" in slip.content[0].text

        page = {"document": "reports/annual.pdf", "page": 2}
        listed = await client.call_tool("list_documents", {})
        assert listed.structured_content["result"] == [
            {"document": "reports/annual.pdf", "pages": 2},
            {"document": "reports/scan.png", "pages": 1},
        ]
        (picture,) = (await client.call_tool("page_image", {**page, "size": 300})).content
        assert picture.mime_type == "image/jpeg"
        assert max(Image.open(io.BytesIO(base64.b64decode(picture.data))).size) == 300
        (words,) = (await client.call_tool("page_text", page)).content
        assert words.text.strip() == "Net revenue by region"
        (nothing,) = (await client.call_tool("page_text", {"document": "reports/scan.png", "page": 1})).content
        assert nothing.text == ""
        why, heatmap = (await client.call_tool("explain_match", {**page, "query": QUERY})).content
        evidence = json.loads(why.text)
        assert [word for word, _ in evidence["words"]] == QUERY.split()
        assert abs(evidence["visual"] - hits[0]["visual"]) < 0.05
        assert Image.open(io.BytesIO(base64.b64decode(heatmap.data))).format == "JPEG"

        (resource,) = (await client.read_resource(hits[0]["uri"])).contents
        assert Image.open(io.BytesIO(base64.b64decode(resource.blob))).format == "JPEG"
        (resource,) = (await client.read_resource(hits[0]["uri"] + "/text")).contents
        assert resource.text.strip() == "Net revenue by region"
        (resource,) = (await client.read_resource("anchorfold://documents")).contents
        assert json.loads(resource.text)["reports/annual.pdf"] == 2

    ask(server, conversation)


def test_short_names_suggestions_snippets_and_modes(address):
    async def conversation(client):
        short = await client.call_tool("page_text", {"document": "annual.pdf", "page": 2})
        assert short.content[0].text.strip() == "Net revenue by region"
        wrong = await client.call_tool("page_text", {"document": "reports/anual.pdf", "page": 2})
        assert wrong.is_error
        assert "Similar names: reports/annual.pdf" in wrong.content[0].text
        wrong = await client.call_tool("search", {"query": "revenue", "document": "reports/anual.pdf"})
        assert wrong.is_error
        assert "Similar names: reports/annual.pdf" in wrong.content[0].text
        short = await client.call_tool("search", {"query": "revenue", "document": "annual.pdf"})
        assert short.structured_content["result"]
        for mode in ("visual", "text", "hybrid"):
            arguments = {"query": "revenue", "mode": mode, "document": "*.pdf"}
            hits = (await client.call_tool("search", arguments)).structured_content["result"]
            assert hits, mode
            assert all(hit["snippet"] for hit in hits), mode
        (search,) = [tool for tool in (await client.list_tools()).tools if tool.name == "search"]
        description = search.input_schema["properties"]["mode"]["description"]
        assert all(f"{mode}: " in description for mode in ("visual", "text", "hybrid"))

    ask(address, conversation)


def test_errors_are_one_sentence(report_folder, address):
    async def conversation(client):
        missing = await client.call_tool("page_image", {"document": "reports/annual.pdf", "page": 9})
        assert missing.is_error
        assert missing.content[0].text.endswith("has no indexed page 9.")
        for arguments in ({"query": ""}, {"query": QUERY, "top_k": 0}, {"query": QUERY, "top_k": 10_000}, {}):
            assert (await client.call_tool("search", arguments)).is_error
        for outside in ("../../etc/passwd", str(report_folder / "reports" / "annual.pdf")):
            answer = await client.call_tool("page_text", {"document": outside, "page": 1})
            assert answer.is_error
        nothing = await client.call_tool("search", {"query": QUERY, "document": "elsewhere/*"})
        assert nothing.structured_content["result"] == []
        with pytest.raises(mcp.MCPError):
            await client.read_resource("anchorfold://page/0123456789")

    ask(address, conversation)


def test_changed_document_returns_stored_text_and_thumbnail(report_folder, address):
    path = report_folder / "reports" / "annual.pdf"
    content, times = path.read_bytes(), path.stat()
    path.write_bytes(content + b"\n")

    async def conversation(client):
        page = {"document": "reports/annual.pdf", "page": 1}
        answer = await client.call_tool("page_text", page)
        assert answer.content[0].text == "Letter to our shareholders"
        assert str(report_folder) not in answer.content[0].text
        assert not (await client.call_tool("page_image", {**page, "size": 200})).is_error

    try:
        ask(address, conversation)
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_cross_site_requests_are_refused(address):
    import httpx

    request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for header in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert httpx.post(address, json=request, headers=header).status_code in (403, 421)


def test_one_client_cannot_exhaust_sessions_or_streams(address):
    import httpx

    about = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    headers = {"Accept": "application/json, text/event-stream"}
    with httpx.Client(headers=headers) as client:
        responses = [client.post(address, json=begin) for _ in range(101)]
        assert {response.status_code for response in responses} == {200}
        assert not any("mcp-session-id" in response.headers for response in responses)
        assert client.get(address).status_code == 405


def test_missing_index(tmp_path):
    completed = subprocess.run(command(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert completed.stdout == ""
    assert "my.index does not exist" in completed.stderr
    assert "Traceback" not in completed.stderr
