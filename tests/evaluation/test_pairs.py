import json

import pytest

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import local_corpus
from anchorfold.evaluation.pairs import corpus_pairs, find_pairs, hub_pairs
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
    found = [(text, read_number(image)) for text, image in corpus_pairs(corpus, 40_000)]
    assert found == [("text 11", 11), ("text 22", 22), ("text 33", 33), ("text 44", 44)]
    some = [[t for t, _ in corpus_pairs(corpus, 40_000, 2, seed)] for seed in (1, 1, 2, 3, 4, 5)]
    assert some[0] == some[1]
    assert len({tuple(s) for s in some}) > 1
    assert [t for t, _ in find_pairs(str(folder), 40_000, 9)] == ["text 11", "text 22", "text 33", "text 44"]


def test_pairs_of_a_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"query": ["one", "", "three"], "image": [page_image(n) for n in (1, 2, 3)]}
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).to_parquet(tmp_path / "train.parquet")
    found = {text: read_number(image) for text, image in hub_pairs(str(tmp_path), 5)}
    assert found == {"one": 1, "three": 3}
    with pytest.raises(AnchorFoldError, match="cannot be read as a dataset"):
        list(hub_pairs(str(tmp_path / "nothing")))


def test_every_method_on_the_same_pairs(folder, models):
    found = compare_on_pairs(models["colpali"], find_pairs(str(folder), 40_000), [0.25])
    by_name = {k.method: k for k in found}
    assert by_name["anchorfold"].lead == 0
    for kept in found:
        assert kept.low <= kept.lead <= kept.high
        assert by_name["anchorfold"].retention - kept.retention == pytest.approx(kept.lead)
