import json
from dataclasses import replace

import datasets
import pytest
from PIL import Image

from anchorfold.errors import AnchorFoldError
from training.colqwen25.pairs import open_page, read_data, training_row
from training.colqwen25.recipe import read_recipe
from training.colqwen25.shapes import write_corpora

RECIPE = read_recipe().data


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    write_corpora(folder, train=30, test=5, cells=3)
    return folder


def dataset(rows):
    """Columns of vidore/colpali_train_set, those that are read and one that is not."""
    return datasets.Dataset.from_dict(
        {
            "image": [Image.new("RGB", (30, 20), (n, 0, 0)) for n in range(rows)],
            "image_filename": [f"{n // 2}.png" for n in range(rows)],
            "query": [f"what is on page {n}?" for n in range(rows)],
            "answer": ["nothing"] * rows,
        },
        features=datasets.Features(
            image=datasets.Image(), image_filename=datasets.Value("string"), query=datasets.Value("string"),
            answer=datasets.Value("string"),
        ),
    )  # fmt: skip


def test_pages_of_a_corpus_are_rendered_once_and_some_held_out(shapes, tmp_path):
    recipe = replace(RECIPE, train=str(shapes / "train"), held_out=0.3)
    data = read_data(recipe, tmp_path, 2_000_000, seed=1)
    seen, unseen = {row["page"] for row in data.rows}, set(data.validation.pages)
    assert len(seen) + len(unseen) == 30
    assert seen.isdisjoint(unseen)
    assert 3 <= len(unseen) <= 15
    assert {page for query in data.validation.queries for page in query.relevant} == unseen
    page = open_page(data.rows[0]["image"])
    assert (page.size, page.mode) == ((84, 84), "RGB")
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "pages").iterdir()}
    again = read_data(recipe, tmp_path, 2_000_000, seed=1)
    assert again == data
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "pages").iterdir()} == written


def test_a_query_that_a_held_out_page_answers_is_not_trained_on(shapes, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "pdfs").symlink_to(shapes / "train" / "pdfs")
    files = sorted(p.name for p in (shapes / "train" / "pdfs").iterdir())
    lines = [{"id": file, "text": file, "relevant": [[file, 0], [files[0], 0]]} for file in files[1:]]
    (corpus / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = read_data(replace(RECIPE, train=str(corpus), held_out=0.3), tmp_path, 2_000_000, seed=1)
    unseen = set(data.validation.pages)
    assert unseen
    assert not any(unseen & set(row["relevant"]) for row in data.rows)


def test_another_folder_validates(shapes, tmp_path):
    recipe = replace(RECIPE, train=str(shapes / "train"), validation=str(shapes / "test"), validation_queries=3)
    data = read_data(recipe, tmp_path, 2_000_000, seed=1)
    assert (len(data.rows), len(data.validation.pages), len(data.validation.queries)) == (30, 5, 3)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_paper_s_training_set_is_read_by_its_columns(tmp_path, streaming):
    for split, count in (("train", 8), ("test", 4)):
        dataset(count).to_parquet(tmp_path / "set" / f"{split}.parquet")
    recipe = replace(RECIPE, train=str(tmp_path / "set"), streaming=streaming)
    data = read_data(recipe, tmp_path, 2_000_000, seed=1)
    assert data.count == (None if streaming else 8)
    rows = [training_row(row) for row in data.rows]
    assert sorted(row["query"] for row in rows) == [f"what is on page {n}?" for n in range(8)]
    assert all(row["relevant"] == [row["page"]] and row["page"].endswith(".png") for row in rows)
    assert open_page(rows[0]["image"]).size == (30, 20)
    assert len(data.validation.pages) == 2  # two queries per page
    assert len(data.validation.queries) == 4


def test_a_dataset_saved_to_disk(tmp_path):
    datasets.DatasetDict(train=dataset(6), test=dataset(2)).save_to_disk(tmp_path / "set")
    data = read_data(replace(RECIPE, train=str(tmp_path / "set")), tmp_path, 2_000_000, seed=1)
    assert (data.count, len(data.validation.queries)) == (6, 2)


def test_what_cannot_be_read_is_said(shapes, tmp_path):
    datasets.DatasetDict(train=dataset(2).remove_columns("query")).save_to_disk(tmp_path / "set")
    with pytest.raises(AnchorFoldError, match="no column query: it has image, image_filename, answer"):
        read_data(replace(RECIPE, train=str(tmp_path / "set")), tmp_path, 2_000_000, seed=1)
    datasets.DatasetDict(train=dataset(2)).save_to_disk(tmp_path / "untested")
    with pytest.raises(AnchorFoldError, match="split test of"):
        read_data(replace(RECIPE, train=str(tmp_path / "untested")), tmp_path, 2_000_000, seed=1)
    with pytest.raises(AnchorFoldError, match="validate on"):
        read_data(replace(RECIPE, train=str(shapes / "train"), held_out=0.0), tmp_path, 2_000_000, seed=1)
