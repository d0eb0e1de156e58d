import json

import pytest

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.pairs import corpus_pairs, find_pairs, held_out_pairs, training_pairs
from anchorfold.evaluation.suitability import compare_on_pairs
from tests.number_reader import page_image, read_number, write_pdf


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
    datasets = pytest.importorskip("datasets")
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


def test_only_what_is_drawn_is_read(training_set, monkeypatch):
    from anchorfold.evaluation import training_set as reading

    groups, row = [], reading._row

    def noted(file, number, columns):
        groups.append(number)
        return row(file, number, columns)

    monkeypatch.setattr(reading, "_row", noted)
    assert len(list(training_pairs(training_set, 3))) == 3
    assert len(groups) <= 5


def test_what_is_wrong_with_a_training_set_is_said(training_set, tmp_path):
    with pytest.raises(AnchorFoldError, match="cannot be read as a dataset"):
        list(training_pairs(str(tmp_path / "nothing")))
    from anchorfold.evaluation.training_set import draw_rows

    with pytest.raises(AnchorFoldError, match="has no column answer"):
        list(draw_rows(training_set, 1, ("query", "answer")))


def test_without_held_out_pairs_it_is_said(folder, monkeypatch):
    from anchorfold.evaluation import pairs

    def unreachable(*_):
        raise AnchorFoldError("no hub")
        yield

    monkeypatch.setattr(pairs, "training_pairs", unreachable)
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
