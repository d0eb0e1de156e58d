"""Pairs of a query and a relevant page, from the paper's training set or from a corpus folder.

A row is `{query, image, page, relevant}`: the text, a page image (a path, or `{bytes, path}` as in the datasets
library), the identifier of the page, and all pages that are relevant to the query.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import QUERIES_FILE, Query, local_corpus
from anchorfold.evaluation.training_set import PAGE_COLUMN, SLICES, is_training_set, slice_of
from training.colqwen25.recipe import DataRecipe

IMAGE, QUERY, FILE = "image", "query", PAGE_COLUMN
TRAINED_SHARE = 1 - sum(high - low for low, high in SLICES.values())
BUFFER = 1000  # shuffle buffer of a stream in rows
Row = dict[str, Any]


@dataclass(frozen=True)
class Validation:
    """Held-out pages by id, and their queries."""

    pages: dict[str, Any]
    queries: list[Query]


@dataclass(frozen=True)
class TrainingData:
    """Training rows (a list or a dataset), their number (None if unknown), and validation data."""

    rows: Any
    count: int | None
    validation: Validation


def read_data(recipe: DataRecipe, folder: Path, pixels: int, seed: int) -> TrainingData:
    """Read training and validation data. Pages of a corpus folder are rendered once, at about `pixels`, to `folder`."""
    is_corpus = (Path(recipe.train) / QUERIES_FILE).is_file()
    rows, count, validation = (
        _read_corpus(recipe, folder / "pages", pixels) if is_corpus else _read_dataset(recipe, seed)
    )
    if recipe.validation:
        other = corpus_rows(Path(recipe.validation), folder / "validation", pixels)
        validation = validation_of(other)
    if not validation.queries:
        raise AnchorFoldError(f"no query of {recipe.validation or recipe.train} is left to validate on.")
    queries = validation.queries[: recipe.validation_queries]
    return TrainingData(rows, count, Validation(validation.pages, queries))


def open_page(image: Any) -> Image.Image:
    """Open the image of a row in RGB."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    if isinstance(image, dict):
        image = io.BytesIO(image["bytes"]) if image.get("bytes") else image["path"]
    with Image.open(image) as opened:
        return opened.convert("RGB")


def corpus_rows(corpus_folder: Path, folder: Path, pixels: int) -> list[Row]:
    """List one row per query and relevant page of a corpus folder; pages are rendered as PNG files to `folder`."""
    corpus = local_corpus(corpus_folder)
    relevant = {page for query in corpus.queries for page in query.relevant}
    folder.mkdir(parents=True, exist_ok=True)
    files = {page: folder / f"{digest(page):016x}.png" for page in corpus.names() if page in relevant}
    missing = {page for page, file in files.items() if not file.is_file()}
    for page, image in corpus.pages(pixels, only=missing) if missing else ():
        temporary = files[page].with_suffix(".new")
        image.save(temporary, "PNG")
        os.replace(temporary, files[page])  # an interruption leaves complete files only
    return [
        {"query": query.text, "image": str(files[page]), "page": page, "relevant": list(query.relevant), "id": query.id}
        for query in corpus.queries
        for page in query.relevant
        if page in files
    ]


def validation_of(rows: list[Row]) -> Validation:
    """Collect the pages and queries of rows."""
    pages = {row["page"]: row["image"] for row in rows}
    relevant: dict[str, dict[str, int]] = {}
    texts = {row["id"]: row["query"] for row in rows}
    for row in rows:
        relevant.setdefault(row["id"], {})[row["page"]] = 1
    return Validation(pages, [Query(identity, texts[identity], answers) for identity, answers in relevant.items()])


def digest(text: str) -> int:
    """Hash a text to a number from 0 to 2^63, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def _read_corpus(recipe: DataRecipe, folder: Path, pixels: int) -> tuple[list[Row], int, Validation]:
    rows = corpus_rows(Path(recipe.train), folder, pixels)
    share = 0.0 if recipe.validation else recipe.held_out
    held_out = {row["page"] for row in rows if digest(row["page"]) < share * 2**63}
    # Exclude queries with any held-out relevant page from training.
    train = [row for row in rows if held_out.isdisjoint(row["relevant"])]
    if not train:
        raise AnchorFoldError(f"{recipe.train} has no query to train on: give more pages, or a smaller data.held_out.")
    return train, len(train), validation_of([row for row in rows if row["page"] in held_out])


def _read_dataset(recipe: DataRecipe, seed: int) -> tuple[Any, int | None, Validation]:
    """Read a dataset with the columns of `vidore/colpali_train_set`: splits `train`, and `test` for validation."""
    train = _split(recipe, "train")
    count = _rows_in(train)
    if is_training_set(recipe.train):  # calibration pairs and pages are not trained on
        train = train.filter(lambda page: slice_of(page) is None, input_columns=[FILE])
        count = _rows_in(train) if hasattr(train, "__len__") or count is None else round(TRAINED_SHARE * count)
    if recipe.streaming:
        train = train.shuffle(seed=seed, buffer_size=BUFFER)
    rows: list[Row] = []
    if not recipe.validation:
        test = iter(_split(recipe, "test"))
        rows = [_plain_row(row, number) for number, row in zip(range(recipe.validation_queries), test, strict=False)]
    return train, count, validation_of(rows)


def _plain_row(row: Row, number: int) -> Row:
    page = row.get(FILE) or f"row {number}"
    return {"query": row[QUERY], "image": row[IMAGE], "page": page, "relevant": [page], "id": str(number)}


def _split(recipe: DataRecipe, split: str) -> Any:
    """Load one split without decoding its images."""
    import datasets

    try:
        if (Path(recipe.train) / "dataset_dict.json").is_file():
            rows = datasets.load_from_disk(recipe.train)[split]
        else:
            rows = datasets.load_dataset(recipe.train, split=split, streaming=recipe.streaming)
    except (ValueError, KeyError, OSError) as problem:
        raise AnchorFoldError(
            f"the split {split} of {recipe.train} cannot be read: {str(problem).splitlines()[0]}. Give a dataset with "
            "the splits train and test, or a corpus folder; data.validation takes the place of the split test."
        ) from problem
    columns = rows.column_names or list(next(iter(rows)))  # a stream may not have them before its first row
    if absent := [name for name in (IMAGE, QUERY) if name not in columns]:
        raise AnchorFoldError(f"{recipe.train} has no column {absent[0]}: it has {', '.join(columns)}.")
    rows = rows.select_columns([name for name in (IMAGE, QUERY, FILE) if name in columns])
    return rows.cast_column(IMAGE, datasets.Image(decode=False)) if rows.features else rows


def _rows_in(rows: Any) -> int | None:
    if hasattr(rows, "__len__"):
        return len(rows)
    splits = getattr(rows.info, "splits", None) or {}
    return splits["train"].num_examples if "train" in splits else None


def training_row(row: Row) -> Row:
    """Add page and relevant pages to rows of a dataset that has neither."""
    if "page" in row:
        return row
    image = row[IMAGE]
    page = row.get(FILE) or (image.get("path") if isinstance(image, dict) else None) or f"{row[QUERY]}"
    return {**row, "page": page, "relevant": [page]}


def images_of(validation: Validation) -> Iterator[Image.Image]:
    """Iterate over the pages in order."""
    return (open_page(image) for image in validation.pages.values())
