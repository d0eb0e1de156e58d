import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorfold import maxsim
from anchorfold.core.fold import CompressedPage
from anchorfold.core.scoring import chunks


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.lists(st.integers(1, 9), min_size=1, max_size=7))
def test_equals_the_definition(query_lengths, page_lengths):
    queries = [rand(n, 4, seed=i) for i, n in enumerate(query_lengths)]
    pages = [rand(n, 4, seed=50 + i) for i, n in enumerate(page_lengths)]
    expected = torch.stack([torch.stack([(q @ p.T).amax(1).sum() for p in pages]) for q in queries])
    torch.testing.assert_close(maxsim(queries, pages), expected)


def test_negative_maxima_stay_negative():
    query, page = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
    longer = torch.tensor([[-1.0, 0.0], [-0.5, 0.0]])
    assert maxsim([query], [page, longer]).tolist() == [[-1.0, -0.5]]


def test_pages_and_tensors_mix():
    vectors = rand(3, 4)
    folded = CompressedPage(vectors, torch.arange(3), torch.arange(3), torch.ones(3))
    scores = maxsim(rand(2, 5, 4), [vectors, folded])
    assert torch.equal(scores[:, 0], scores[:, 1])


def test_empty_sides():
    assert maxsim([], [rand(2, 4)]).shape == (0, 1)
    assert maxsim([rand(2, 4)], []).shape == (1, 0)
    assert maxsim([rand(2, 4)], [torch.zeros(0, 4), rand(1, 4)])[0, 0] == -torch.inf
    assert maxsim([torch.zeros(0, 4)], [rand(1, 4)]).tolist() == [[0.0]]


def test_many_pages_are_scored_in_chunks():
    assert chunks([3, 3, 3, 1], 5) == [(0, 2), (2, 4)]
    pages = [rand(200, 4, seed=i) for i in range(200)]
    expected = torch.stack([(rand(3, 4) @ p.T).amax(1).sum() for p in pages])
    torch.testing.assert_close(maxsim([rand(3, 4)], pages)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    query, page = rand(2, 4).to(dtype), rand(3, 4, seed=1).to(dtype)
    scores = maxsim([query], [page])
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, maxsim([query.float()], [page.float()]))


def test_rejects_invalid_input():
    with pytest.raises(ValueError, match="different dimensions"):
        maxsim([rand(2, 4)], [rand(2, 5)])
    with pytest.raises(ValueError, match=r"\(vectors, dim\)"):
        maxsim([rand(4)], [rand(2, 4)])
    with pytest.raises(ValueError, match="pages contains NaN"):
        maxsim([rand(2, 4)], [torch.full((1, 4), torch.nan)])
