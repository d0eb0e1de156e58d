import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfold.errors import MismatchError
from anchorfold.index.store.schema import (
    FORMAT,
    METADATA_KEY,
    IndexSettings,
    PageRow,
    encoded_of,
    page_schema,
    quantise,
    to_table,
)
from anchorfold.page import EncodedPage, PatchGrid
from tests.number_reader import DIM, index_settings


def row(page=1, vectors=5, grid=True, **changes):
    generator = torch.Generator().manual_seed(page)
    encoded = EncodedPage(
        torch.nn.functional.normalize(torch.randn(vectors, DIM, generator=generator), dim=1),
        torch.arange(vectors) * 2,
        torch.randint(-1, vectors, (24,), generator=generator),
        torch.rand(24, generator=generator),
        PatchGrid.tiled(2, 1, 3, 4, thumbnail=False) if grid else None,
    )
    plain = {"source": "/a/b.pdf", "document": "b.pdf", "page": page, "pages": 9, "digest": "d", "size": 3, "modified": 4, "live": True}  # fmt: skip  # noqa: E501
    return PageRow(**{**plain, "encoded": encoded, **changes})


@pytest.mark.parametrize(("dtype", "close"), [("float32", 0), ("float16", 1e-3), ("int8", 8e-3)])
def test_pages_come_back_as_they_went_in(dtype, close):
    rows = [row(1), row(2, vectors=1, grid=False), row(3, vectors=9)]
    table = to_table(rows, index_settings(dtype=dtype))
    for i, r in enumerate(rows):
        found = encoded_of(table, i)
        assert torch.allclose(found.vectors, r.encoded.vectors, atol=close, rtol=0)
        assert torch.equal(found.anchors, r.encoded.anchors)
        assert torch.equal(found.groups, r.encoded.groups)
        assert torch.allclose(found.weights, r.encoded.weights, atol=1e-3)
        assert found.grid == r.encoded.grid
        assert found.full == 24


def test_a_page_that_could_not_be_read_has_no_vectors():
    table = to_table([row(encoded=None, problem="damaged"), row(2)], index_settings())
    assert table["kept"].to_pylist() == [0, 5]
    assert table["problem"].to_pylist() == ["damaged", None]


def test_another_dimension_is_refused():
    with pytest.raises(MismatchError, match="dimension 8"):
        to_table([row()], index_settings(dim=8))


def test_settings_travel_in_the_schema():
    made = index_settings(dtype="int8", bidirectional=True)
    assert IndexSettings.from_schema(page_schema(made)) == made


def test_schemas_of_others_and_of_other_formats_are_refused():
    with pytest.raises(MismatchError, match="not written by anchorfold"):
        IndexSettings.from_schema(pa.schema([("x", pa.int8())]))
    later = page_schema(index_settings(format=FORMAT + 1))
    with pytest.raises(MismatchError, match=f"format {FORMAT + 1}"):
        IndexSettings.from_schema(later)
    fewer = pa.schema(list(page_schema(index_settings()))[:3], metadata={METADATA_KEY: index_settings().to_json()})
    with pytest.raises(MismatchError, match="columns"):
        IndexSettings.from_schema(fewer)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 64), st.floats(1e-4, 100))
def test_int8_is_within_half_a_step(m, d, size):
    vectors = (np.random.default_rng(m * 64 + d).normal(size=(m, d)) * size).astype(np.float32)
    codes, scales = quantise(vectors)
    assert np.all(np.abs(codes * scales[:, None] - vectors) <= 0.5001 * scales[:, None] + 1e-7)
