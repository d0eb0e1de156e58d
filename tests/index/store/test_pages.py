import pytest
import torch

from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.index.coding import BITS
from anchorfold.index.store.pages import PageRow, columns_of
from anchorfold.index.store.table import PageTable
from anchorfold.page import EncodedPage, PatchGrid
from tests.number_reader import DIM, index_settings


def row(page=1, vectors=5, grid=True, **changes):
    generator = torch.Generator().manual_seed(page)
    groups = torch.randint(-1, vectors, (24,), generator=generator)
    anchors = torch.arange(vectors) * 2
    groups[anchors] = torch.arange(vectors)
    shares = torch.rand(24, generator=generator) * (groups >= 0)
    sums = torch.zeros(vectors).index_add_(0, groups.clamp(min=0), shares)
    encoded = EncodedPage(
        torch.nn.functional.normalize(torch.randn(vectors, DIM, generator=generator), dim=1),
        anchors,
        groups,
        shares / sums[groups.clamp(min=0)],
        PatchGrid.tiled(2, 1, 3, 4, thumbnail=False) if grid else None,
    )
    plain = {"source": "/a/b.pdf", "document": "b.pdf", "page": page, "pages": 9, "digest": "d", "size": 3, "modified": 4, "live": True}  # fmt: skip  # noqa: E501
    return PageRow(**{**plain, "encoded": encoded, **changes})


CLOSE = {32: 0, 16: 1e-3, 8: 8e-3, 4: 0.15, 2: 0.5, 1: 1.0}


@pytest.mark.parametrize("bits", BITS)
def test_pages_come_back_as_they_went_in(tmp_path, bits):
    rows = [row(1, thumbnail=b"picture"), row(2, vectors=1, grid=False), row(3, vectors=9)]
    table = PageTable.create(tmp_path / "my.index", index_settings(bits=bits))
    table.append(rows)
    for given in rows:
        stored = PageTable.open(table.folder).page(given.source, given.page)
        encoded = stored.encoded()
        assert torch.allclose(encoded.vectors, given.encoded.vectors, atol=CLOSE[bits], rtol=0)
        assert torch.equal(encoded.anchors, given.encoded.anchors)
        assert torch.equal(encoded.groups, given.encoded.groups)
        assert torch.allclose(encoded.weights, given.encoded.weights, atol=0.2)
        assert encoded.grid == given.encoded.grid
        assert encoded.full == stored.full == 24
        assert stored.kept == len(given.encoded)
        assert (stored.thumbnail, stored.problem) == (given.thumbnail, None)


def test_a_page_that_could_not_be_read_has_no_vectors(tmp_path):
    table = PageTable.create(tmp_path / "my.index", index_settings())
    table.append([row(encoded=None, problem="damaged: ü"), row(2)])
    pages = {page.page: page for page in table.pages()}
    assert (pages[1].kept, pages[1].problem, pages[2].kept) == (0, "damaged: ü", 5)
    assert [page.page for page in table.encoded_pages()] == [2]


def test_provenance_can_be_left_out(tmp_path):
    table = PageTable.create(tmp_path / "my.index", index_settings(provenance=False))
    table.append([row(1)])
    stored = table.page("/a/b.pdf", 1)
    assert stored.vectors.shape == (5, DIM)
    with pytest.raises(AnchorFoldError, match="--no-provenance"):
        stored.encoded()


def test_another_dimension_is_refused():
    with pytest.raises(MismatchError, match="dimension 8"):
        columns_of([row()], [1], index_settings(dim=8))
