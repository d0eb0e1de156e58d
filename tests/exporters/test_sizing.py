"""Storage estimates agree with the bytes that stores write, and the documentation with the estimates."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from anchorfold.backbones.catalogue import KNOWN
from anchorfold.cli.app import app, load_commands
from anchorfold.cli.printing import format_size
from anchorfold.errors import InvalidArgumentError
from anchorfold.exporters.sizing import EMBEDDED_PAGE_BYTES, estimate_storage
from anchorfold.quantization.codec import Coding

load_commands()
PAGE = Path(__file__).parents[2] / "docs/explanation/size.md"
MODELS = {
    "nano": "nano",
    "ColPali v1.3": "vidore/colpali-v1.3-hf",
    "ColQwen2.5": "vidore/colqwen2.5-v0.2",
    "Nemotron ColEmbed 3B": "nvidia/llama-nemotron-colembed-vl-3b-v2",
}
COLUMNS = ((1.0, 16), (0.2, 8), (0.1, 4), (0.05, 2))


def table_rows(text: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def run(*arguments: str, code: int = 0) -> str:
    completed = CliRunner().invoke(app, ["size", *arguments])
    assert completed.exit_code == code, completed.output
    return completed.output


@pytest.mark.parametrize("bits", [32, 16, 8, 4, 2, 1])
def test_embedded_codes_have_the_estimated_bytes(bits):
    vectors = np.random.default_rng(0).standard_normal((13, 96)).astype(np.float32)
    codes, scales = Coding(96, bits).encode(vectors)
    size = next(estimate_storage(1, 130, 96, ratio=0.1, bits=bits))
    assert size.vectors == 13
    assert size.memory == codes.nbytes + scales.nbytes
    assert size.disk == size.memory + EMBEDDED_PAGE_BYTES


def test_qdrant_limit():
    whole, tenth = (
        {s.store: s for s in estimate_storage(1, 2304, 3072, ratio=ratio)} for ratio in (1.0, 0.1)
    )  # fmt: skip
    assert whole["Qdrant, float16"].problem == "more than Qdrant stores in one point"
    assert tenth["Qdrant, float16"].problem is None
    assert whole["AnchorFold, 16 bits"].problem is None


def test_invalid_arguments():
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        next(estimate_storage(0, 10, 10, ratio=0.1))


def test_documented_tables():
    rows = table_rows(PAGE.read_text("utf-8"))
    by_name = {model.name: model for model in KNOWN}
    for title, name in MODELS.items():
        (row,) = [r for r in rows if r[0] == title]
        model = by_name[name]
        sizes = [
            next(estimate_storage(1_000_000, model.visual_tokens or 0, model.dim, ratio=ratio, bits=bits))
            for ratio, bits in COLUMNS
        ]
        assert row[1:] == [f"{model.dim:,}", *(format_size(size.disk) for size in sizes)]
    for size in estimate_storage(1_000_000, 1024, 128, ratio=0.1, bits=4):
        assert [size.store, format_size(size.disk), format_size(size.memory)] in rows


def test_command():
    entries = json.loads(run("--model", "nano", "--ratio", "0.1", "--bits", "4", "--disk-price", "2", "--json"))
    assert entries[0]["vectors"] == 160
    assert entries[0]["cost"] == pytest.approx(2 * entries[0]["disk"] / 1e9)
    output = run("--tokens", "100", "--dim", "64", "--pages", "10")
    assert "10 pages of 100 vectors with 64 dimensions" in output
    assert "20x" in output
    assert "cost" not in output


def test_unknown_model():
    assert "give --tokens and --dim" in str(CliRunner().invoke(app, ["size", "--model", "unknown"]).exception)
