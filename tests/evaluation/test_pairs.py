import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation import training_set as reading
from anchorfold.evaluation.calibration import compare_on_pairs
from anchorfold.evaluation.calibration_pairs import corpus_pairs, find_pairs, held_out_pairs, training_pairs
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.training_set import training_images
from tests.number_reader import page_image, read_number, write_pdf

datasets = pytest.importorskip("datasets")

from training.colqwen25.pairs import read_data  # noqa: E402
from training.colqwen25.recipe import read_recipe  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    write_pdf(tmp_path / "pdfs/a.pdf", [11, 22, 33, 44])
    lines = [{"id": str(i), "text": f"text {n}", "relevant": [["a.pdf", i]]} for i, n in enumerate([11, 22, 33, 44])]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def test_pairs_of_a_corpus_belong_together_and_depend_on_the_seed_only(folder):
    corpus = local_corpus(folder)
    pairs = [(text, read_number(image)) for text, image in corpus_pairs([corpus], 40_000)]
    assert pairs == [("text 11", 11), ("text 22", 22), ("text 33", 33), ("text 44", 44)]
    some = [[t for t, _ in corpus_pairs([corpus], 40_000, 2, seed)] for seed in (1, 1, 2, 3, 4, 5)]
    assert some[0] == some[1]
    assert len({tuple(s) for s in some}) > 1
    assert [t for t, _ in find_pairs(str(folder), 40_000, 9)] == ["text 11", "text 22", "text 33", "text 44"]


@pytest.fixture
def training_set(tmp_path):
    """Two files of several row groups; some rows have no query."""
    numbers = list(range(1, 41))
    for part in (numbers[:25], numbers[25:]):
        rows = {"query": [f"text {n}" if n % 10 else "" for n in part], "image": [page_image(n) for n in part]}
        table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        table.to_parquet(tmp_path / "set" / "data" / f"train-{part[0]:05}-of-00002.parquet", batch_size=4)
    return str(tmp_path / "set")


def test_pairs_of_a_training_set_are_drawn_uniformly(training_set, monkeypatch):
    pairs = [(text, read_number(image)) for text, image in training_pairs(training_set, 400)]
    assert sorted(pairs) == sorted((f"text {n}", n) for n in range(1, 41) if n % 10)
    some = [{text for text, _ in training_pairs(training_set, 6, seed)} for seed in range(60)]
    assert some[0] == {text for text, _ in training_pairs(training_set, 6, 0)}
    counts = [sum(f"text {n}" in drawn for drawn in some) for n in range(1, 41) if n % 10]
    # Each of 36 rows in 6 of 36 draws: 10 of 60 on average, the last row as often as the first.
    assert min(counts) > 0
    assert max(counts) < 24
    assert abs(sum(counts[:18]) - sum(counts[18:])) < 60


def test_rows_of_the_hub_are_read_once_and_their_bytes_reported(training_set, tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        reading, "parquet_paths", lambda name: [f"file://{p}" for p in sorted(Path(name).rglob("*.parquet"))]
    )
    reports: list[str] = []
    first = [(text, read_number(image)) for text, image in training_pairs(training_set, 3, report=reports.append)]
    assert len(first) == 3
    sizes = re.search(r"reading 3 rows in [1-3] row groups, ([\d,]+) bytes", reports[0])
    whole = sum(p.stat().st_size for p in Path(training_set).rglob("*.parquet"))
    assert sizes is not None
    assert 0 < int(sizes[1].replace(",", "")) < whole
    (cached,) = (tmp_path / "cache").rglob("*.parquet")
    monkeypatch.setattr(reading, "_open", lambda _: pytest.fail("read again"))
    again = [(text, read_number(image)) for text, image in training_pairs(training_set, 3, report=reports.append)]
    assert again == first
    assert str(cached) in reports[1]
    with pytest.raises(pytest.fail.Exception):
        list(training_pairs(training_set, 4))


def test_calibration_pairs_and_pages_of_the_training_set_are_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SLICES", {"pairs": (0.0, 0.3), "pages": (0.3, 0.5)})
    folder = tmp_path / "colpali_train_set"
    rows = {
        "query": [f"text {n}" for n in range(60)], "image": [page_image(n // 2) for n in range(60)],
        "image_filename": [f"{n // 2}.png" for n in range(60)],  # two queries per page
    }  # fmt: skip
    table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    table.to_parquet(folder / "data" / "train-00000-of-00001.parquet", batch_size=10)
    table.select(range(2)).to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    pairs = {read_number(image) for _, image in training_pairs(str(folder), 500)}
    pages = {read_number(image) for image in training_images(str(folder), 128)}
    recipe = replace(read_recipe().data, train=str(folder))
    trained = {int(row["query"].split()[1]) // 2 for row in read_data(recipe, tmp_path, 40_000, 1).rows}
    assert all((len(pairs), len(pages), len(trained)))
    assert pairs | pages | trained == set(range(30))
    assert len(pairs) + len(pages) + len(trained) == 30
    streamed = read_data(replace(recipe, streaming=True), tmp_path, 40_000, 1).rows
    assert {int(row["query"].split()[1]) // 2 for row in streamed} == trained


def test_problems_of_a_training_set_are_reported(training_set, tmp_path):
    with pytest.raises(AnchorFoldError, match=r"cannot be read as a dataset: .*[^.]\.$"):  # one full stop
        list(training_pairs(str(tmp_path / "nothing")))
    with pytest.raises(AnchorFoldError, match="has no column answer"):
        list(reading.sample_rows(training_set, 1, ("query", "answer"), "pairs"))


def test_without_held_out_pairs_it_is_said(folder, monkeypatch):
    from anchorfold.evaluation import calibration_pairs as pairs

    def unreachable():
        raise AnchorFoldError("no hub")

    monkeypatch.setattr(pairs, "require_training_set", unreachable)
    given, source, evaluated = held_out_pairs(None, [local_corpus(folder)], 40_000, 3)
    assert (len(list(given)), source, evaluated) == (3, "the evaluated pages", True)
    _, source, evaluated = held_out_pairs(str(folder), [], 40_000, 3)
    assert (source, evaluated) == (str(folder), False)


def test_every_method_on_the_same_pairs(folder, models):
    methods = compare_on_pairs(models["colpali"], find_pairs(str(folder), 40_000), [0.25])
    by_name = {method.method: method for method in methods}
    assert by_name["anchorfold"].lead == 0
    for method in methods:
        assert method.low <= method.lead <= method.high
        assert by_name["anchorfold"].retention - method.retention == pytest.approx(method.lead)
