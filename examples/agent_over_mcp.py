"""What an agent does with an index, over the Model Context Protocol: search, look, read, explain.

python examples/agent_over_mcp.py [FOLDER]

Agents start the server themselves; docs/guides/agents.md has the lines of configuration for two of them.
"""

import asyncio
import base64
import sys
import tempfile
from pathlib import Path

from mcp import Client, StdioServerParameters

from anchorfold import AnchorFold, Index
from anchorfold.demo.sample_documents import slides

QUESTION = "vendors for satellite and coastal 5G"


async def converse(index: Path) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "anchorfold", "mcp", str(index)])
    async with Client(server) as client:
        tools = await client.list_tools()
        print("tools:", ", ".join(tool.name for tool in tools.tools))

        answer = await client.call_tool("search", {"query": QUESTION, "top": 1})
        hit = answer.structured_content["result"][0]
        print(f"search: {hit['document']}, page {hit['page']}, score {hit['score']}")

        page = {"document": hit["document"], "page": hit["page"]}
        picture = (await client.call_tool("page_image", {**page, "pixels": 800})).content[0]
        print(f"page_image: {picture.mime_type}, {len(base64.b64decode(picture.data)) // 1000} kB")
        text = (await client.call_tool("page_text", page)).content[0].text
        print("page_text:", " / ".join(text.split("\n")[:3]).replace("\r", ""))
        why = (await client.call_tool("explain_match", {**page, "query": QUESTION})).content[0].text
        print("explain_match:", why)


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        documents = Path(work) / "wifi-slides.pdf" if len(sys.argv) < 2 else Path(sys.argv[1])
        if len(sys.argv) < 2:
            slides().output(str(documents))
        Index.create(Path(work) / "my.index", compressor=AnchorFold(ratio=0.1)).add(documents)
        asyncio.run(converse(Path(work) / "my.index"))


if __name__ == "__main__":
    main()
