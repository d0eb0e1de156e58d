"""Vectors of the raw variants have norms below 1: indexes of all bit widths must keep them."""

import pytest

from anchorfold import Index, maxsim
from anchorfold.compressors import compressor
from tests.number_reader import NumberReader, page_image, write_pdf

TOLERANCE = {32: 1e-5, 16: 1e-3, 8: 0.02, 4: 0.2}


@pytest.mark.parametrize("name", ["semantic-clustering-raw", "1d-pooling-raw"])
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_index_scores_equal_maxsim_of_raw_means(tmp_path, name, bits):
    numbers, reader = [3, 141, 592], NumberReader()
    write_pdf(tmp_path / "docs" / "a.pdf", numbers)
    index = Index.create(tmp_path / "my.index", reader, compressor(name, ratio=0.2), bits=bits)
    index.add(tmp_path / "docs")
    query = reader.encode_queries(["141"])
    pages = reader.encode_documents(map(page_image, numbers), compressor(name, ratio=0.2))
    assert max(float(page.vectors.norm(dim=1).max()) for page in pages) < 0.95
    expected = maxsim(query, pages)[0].tolist()
    (hits,) = index.search_vectors(query, top_k=3)
    assert {hit.page: hit.score for hit in hits} == {
        number + 1: pytest.approx(score, rel=TOLERANCE[bits]) for number, score in enumerate(expected)
    }
