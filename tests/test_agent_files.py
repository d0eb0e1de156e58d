"""Files for language models and agents name pages and tools that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_links_of_llms_txt():
    text = (ROOT / "docs/llms.txt").read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    assert [link for link in links if link != "reference/cli.md" and not (ROOT / "docs" / link).is_file()] == []


def test_skill_names_tools_of_the_server():
    skill = (ROOT / "examples/skills/document-search/SKILL.md").read_text("utf-8")
    server = (ROOT / "src/anchorfold/server/mcp_server.py").read_text("utf-8")
    tools = set(re.findall(r"@tool\([^)]*\)\n    def (\w+)", server))
    named = {name for name in re.findall(r"`(\w+)`", skill) if "_" in name} | {"search"}
    assert named - {"per_document"} <= tools
    assert skill.startswith("---\nname: document-search\ndescription: ")
