"""What `Index` and `Hit` show in a Python session and in a notebook."""

import pytest
from PIL import Image

from anchorfold import AnchorFoldError, Hit, Index
from tests.number_reader import NumberReader, write_pdf


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    write_pdf(folder / "docs" / "a.pdf", [1, 2])
    write_pdf(folder / "docs" / "b.pdf", [3])
    index = Index.create(folder / "my.index", NumberReader())
    index.add(folder / "docs")
    return index


def test_an_index_has_a_short_repr(index):
    assert "2 documents, number-reader, focus-clustering(ratio=0.2)" in repr(index)


def test_an_index_has_a_length_and_iterates_over_documents(index):
    assert len(index) == 2
    assert [name.rpartition("/")[2] for name in index] == ["a.pdf", "b.pdf"]


def test_an_empty_index_is_true(tmp_path):
    assert Index.create(tmp_path / "my.index", NumberReader())


def test_a_hit_renders_its_page(index):
    hit = index.search("3")[0]
    image = hit.image(200)
    assert isinstance(image, Image.Image)
    assert max(image.size) <= 200
    assert hit._repr_png_().startswith(b"\x89PNG")
    assert "b.pdf, page 1, score" in hit._repr_html_()
    assert "data:image/png;base64," in hit._repr_html_()
    assert "render" not in repr(hit)


def test_a_hit_without_an_index_cannot_render():
    hit = Hit("a.pdf", 1, 0.5, "/a.pdf")
    with pytest.raises(AnchorFoldError, match="search again"):
        hit.image()
    assert "<p>a.pdf, page 1" in hit._repr_html_()
