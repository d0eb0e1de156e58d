"""Every example runs unchanged, offline, in a separate process."""

import ast
import json
from pathlib import Path

import pytest

from tests.forked import completed

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NOTEBOOK = Path(__file__).parents[1] / "examples" / "tour.ipynb"
EXPECTED = {
    "agent_over_mcp": ["search: ", "wifi-slides.pdf, page 3", "page_image: image/jpeg", "page_text: ", '"words"'],
    "attach_to_sentence_transformers": ["full: ", "attached: ", "a module: "],
    "compare_compressors": ["anchorfold 0.2", "similarity-fold 0.05"],
    "rag_with_langchain": ["Sponsor: Leila Haddad [wifi-slides.pdf, page 1]", "Budget 14 million"],
    "search_a_folder": ["wifi-slides.pdf, page 3", "10.0 times fewer"],
    "hybrid_with_filters": [
        "year >= 2025 and public: wifi-slides.pdf",
        "<= 2: forms.pdf",
        "hybrid: wifi-slides.pdf, page 3",
        "Updated metadata of 1 document",
    ],
    "existing_vectors": ["1024 -> 103", "4,096 vectors became 412", "find report.pdf, page 3"],
}


def test_all_are_named_in_their_readme():
    readme = (EXAMPLES[0].parent / "README.md").read_text()
    assert {path.stem for path in EXAMPLES} == set(EXPECTED)
    assert all(path.name in readme for path in EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    process = completed(script=path, cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert process.returncode == 0, process.stderr
    for words in EXPECTED[path.stem]:
        assert words in process.stdout


DISPLAY = """
def display(value):
    picture = getattr(value, "_repr_html_", None) or getattr(value, "_repr_png_", None)
    print(type(value).__name__, picture is not None and len(picture()) > 1000, value)
"""


def notebook_script():
    """The code cells of the notebook as a script that prints how the last expression of each cell is displayed."""
    lines = [DISPLAY]
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.startswith("%"):
            continue
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        module = ast.parse(source)
        if isinstance(module.body[-1], ast.Expr):
            shown = ast.unparse(module.body.pop())
            module.body.append(ast.parse(f"display({shown})").body[0])
        lines.append(ast.unparse(module))
    return "\n".join(lines)


@pytest.mark.slow
def test_notebook_runs(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(notebook_script())
    process = completed(script=script, cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert process.returncode == 0, process.stderr
    for words in ("Hit True", "Image True", "anchorfold ", "random ", " vectors became ", "[('infographics.pdf', 3)]"):
        assert words in process.stdout
    assert NOTEBOOK.name in (NOTEBOOK.parent / "README.md").read_text()
