"""`anchorfold compress` as users run it."""

import json

import numpy as np
import pytest
from qdrant_client import QdrantClient

from anchorfold.cli.printing import format_size
from anchorfold.vectors.compression_target import choose_target
from tests.cli.processes import run
from tests.forked import completed

DIM = 16


@pytest.fixture
def work(tmp_path):
    """A folder with vectors of six pages, as people write them."""
    folder = tmp_path / "vectors" / "report.pdf"
    folder.mkdir(parents=True)
    for page in range(1, 7):
        np.save(folder / f"{page}.npy", np.random.default_rng(page).normal(size=(40, DIM)).astype("float16"))
    return tmp_path


def test_compress_into_an_index_twice(work):
    completed = run("compress", "vectors", "-o", "small.index", "--ratio", "0.1", cwd=work)
    lines = {line.split("  ")[0]: line for line in completed.stdout.splitlines()}
    assert "6 (6 new in" in lines["total pages"]
    assert "240" in lines["vectors before"]
    assert "24" in lines["vectors after"]
    assert "10.0" in lines["compression ratio"]
    again = json.loads(run("compress", "vectors", "-o", "small.index", "--ratio", "0.1", "--json", cwd=work).stdout)
    assert (again["pages"], again["unchanged"], again["skipped"]) == (0, 6, 0)
    info = json.loads(run("info", "small.index", "--json", cwd=work).stdout)
    assert (info["pages"], info["vectors"], info["model"], info["method"]) == (
        6, 24, "given-vectors", "semantic-clustering",
    )  # fmt: skip
    assert (
        "created from existing vectors without a model name"
        in run("search", "small.index", "net revenue", code=1, cwd=work).stderr
    )


def test_export_to_a_file_and_import_into_qdrant(work):
    run("compress", "vectors", "-o", "small.parquet", "--cap", "5", "--method", "ward", cwd=work)
    assert not list(work.glob("*.unfinished"))
    shown = run("compress", "small.parquet", "-o", "qdrant", "--format", "qdrant", "--target-collection", "tiny", "--cap", "3", "--quantization", "binary", cwd=work).stdout  # fmt: skip  # noqa: E501
    assert "vectors 576 B, binary copy 36 B (in RAM), payload" in shown
    client = QdrantClient(path=str(work / "qdrant"))
    records, _ = client.scroll("tiny", limit=10, with_vectors=True)
    client.close()
    assert {(r.payload["document"], r.payload["page"]) for r in records} == {("report.pdf", p) for p in range(1, 7)}
    assert {np.shape(r.vector) for r in records} == {(3, DIM)}
    # From one collection of a folder into another, although the client locks the folder.
    again = run("compress", "qdrant", "-o", "qdrant", "--format", "qdrant", "--target-collection", "two", "--cap", "2", cwd=work)  # fmt: skip  # noqa: E501
    assert "search_params" not in again.stderr
    client = QdrantClient(path=str(work / "qdrant"))
    assert {name: client.count(name).count for name in ("tiny", "two")} == {"tiny": 6, "two": 6}
    client.close()
    guess = run("compress", "vectors", "-o", "folder", "--target-collection", "two", code=1, cwd=work).stderr
    assert "or add --format qdrant for a folder of its client" in guess


def test_a_failed_upload_is_resumed_from_the_cache_folder(work):
    address = "http://user:secret@127.0.0.1:9"  # closed port
    cache = work.parent / f"{work.name}-cache"
    arguments = ("compress", "vectors", "-o", address, "--cap", "3")
    failed = completed(*arguments, cwd=work, ANCHORFOLD_CACHE=str(cache))
    assert failed.returncode == 1
    (folder,) = (cache / "unfinished").iterdir()
    assert f"6 compressed pages are stored in {folder}: run the same command again" in failed.stderr
    assert "secret" not in folder.name
    assert [path.name for path in work.iterdir()] == ["vectors"]
    again = completed(*arguments, cwd=work, ANCHORFOLD_CACHE=str(cache))
    assert str(folder) in again.stderr
    target = choose_target(str(work / "qdrant"), "qdrant")
    assert target.export(folder) == 6
    assert not folder.exists()


def test_no_files_remain_if_nothing_was_compressed(work):
    cache = work.parent / f"{work.name}-cache"
    for to in ("http://127.0.0.1:9", "small.npz"):
        failed = completed(
            "compress", "vectors", "-o", to, "--model", "./no-model", cwd=work, ANCHORFOLD_CACHE=str(cache)
        )
        assert failed.returncode == 1
        assert "no model folder" in failed.stderr
    assert [path.name for path in work.iterdir()] == ["vectors"]
    assert not list(cache.glob("unfinished/*"))


@pytest.mark.parametrize(("bits", "component"), [(16, 2), (32, 4)])
@pytest.mark.parametrize("name", ["small.npz", "small.parquet"])
def test_reported_sizes_are_those_of_the_file(work, bits, component, name):
    arguments = ("compress", "vectors", "-o", name, "--cap", "5", "--bits", str(bits))
    summary = json.loads(run(*arguments, "--json", cwd=work).stdout)
    assert summary["on disk"] == (work / name).stat().st_size
    assert f"30 ({format_size(30 * DIM * component)} as float{bits})" in run(*arguments, cwd=work).stdout


def test_unsupported_bits_of_an_export(work):
    completed = run("compress", "vectors", "-o", "small.npz", "--bits", "2", code=1, cwd=work)
    assert "--bits 2 cannot be stored in small.npz: npz supports 16 or 32 bits" in completed.stderr
    assert [path.name for path in work.iterdir()] == ["vectors"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "anchorfold"), "anchorfold needs attention, which existing vectors do not contain"),
        (("--ratio", "2"), "ratio must be in (0, 1]"),
        (("--source-format", "zip"), "there is no vector source called 'zip'"),
        (("--target-collection", "x"), "has no collections"),
        (("--quantization", "scalar"), "cannot be used with the index small.index: use --bits"),
        (("--bits", "3"), "cannot be stored in 3 bits"),
    ],
)
def test_wrong_usage_is_one_sentence(work, arguments, words):
    completed = run("compress", "vectors", "-o", "small.index", *arguments, code=1, cwd=work)
    assert words in completed.stderr
    assert len(completed.stderr.strip().splitlines()) == 1
    assert not (work / "small.index").exists()


def test_pages_that_cannot_be_read(work):
    np.save(work / "vectors" / "flat.npy", np.ones(7))
    completed = run("compress", "vectors", "-o", "small.index", code=3, cwd=work)
    assert "skipped flat page 1: shape (7,), expected (vectors, dim)" in completed.stderr
    assert json.loads(run("info", "small.index", "--json", cwd=work).stdout)["pages"] == 6
