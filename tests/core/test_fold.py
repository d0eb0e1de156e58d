import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from anchorfold.core.fold import fold, top_tokens


def page(n=20, d=8, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g).to(dtype), (torch.rand(n, generator=g) + 0.01).to(dtype)


pages = st.tuples(st.integers(1, 30), st.integers(0, 10_000), st.floats(0.01, 1.0))


class TestInvariants:
    @given(pages)
    @settings(max_examples=80)
    def test_shapes_groups_and_weights(self, drawn):
        n, seed, share = drawn
        m = max(1, int(share * n))
        hidden, alpha = page(n, seed=seed)
        folded = fold(hidden, alpha, m)
        assert folded.vectors.shape == (m, 8)
        assert folded.anchors.tolist() == sorted(set(folded.anchors.tolist()))
        assert folded.groups[folded.anchors].tolist() == list(range(m))
        assert set(folded.groups.tolist()) == set(range(m))
        torch.testing.assert_close(folded.vectors.norm(dim=1), torch.ones(m))
        sums = torch.zeros(m).index_add_(0, folded.groups, folded.weights)
        torch.testing.assert_close(sums, torch.ones(m))

    @given(pages)
    @settings(max_examples=50)
    def test_each_token_joins_its_nearest_anchor(self, drawn):
        n, seed, share = drawn
        hidden, alpha = page(n, seed=seed)
        folded = fold(hidden, alpha, max(1, int(share * n)))
        e = normalize(hidden, dim=1)
        similarity = e @ e[folded.anchors].T
        torch.testing.assert_close(similarity.amax(1), similarity.gather(1, folded.groups[:, None])[:, 0])

    @given(pages)
    @settings(max_examples=50)
    def test_folding_projections_equals_folding_hidden_states(self, drawn):
        n, seed, share = drawn
        m = max(1, int(share * n))
        hidden, alpha = page(n, seed=seed)
        p = torch.nn.Linear(8, 5)
        with torch.no_grad():
            direct = fold(hidden.double(), alpha.double(), m, p.double())
            ahead = fold(p(hidden.double()), alpha.double(), m)
        torch.testing.assert_close(direct.vectors, ahead.vectors)

    def test_scaling_alpha_changes_nothing(self):
        hidden, alpha = page()
        torch.testing.assert_close(fold(hidden, alpha, 5).vectors, fold(hidden, 7 * alpha, 5).vectors)


class TestEdges:
    def test_full_budget_is_the_full_index_exactly(self):
        hidden, alpha = page()
        p = torch.nn.Linear(8, 5).requires_grad_(False)
        folded = fold(hidden, alpha, 20, p)
        assert torch.equal(folded.vectors, normalize(p(hidden), dim=1))
        assert folded.groups.tolist() == folded.anchors.tolist() == list(range(20))

    def test_weighted_mean_of_hidden_states(self):
        hidden = torch.tensor([[4.0, 0.0], [2.0, 0.2], [0.0, 1.0]])
        alpha = torch.tensor([3.0, 1.0, 2.0])
        folded = fold(hidden, alpha, 2)
        assert folded.anchors.tolist() == [0, 2]
        assert folded.groups.tolist() == [0, 0, 1]
        torch.testing.assert_close(folded.vectors[0], normalize((3 * hidden[0] + hidden[1]) / 4, dim=0))

    def test_ties_break_towards_the_earlier_token(self):
        assert top_tokens(torch.tensor([1.0, 2.0, 2.0, 2.0, 1.0]), 2).tolist() == [1, 2]
        hidden = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        folded = fold(hidden, torch.tensor([1.0, 5.0, 5.0, 1.0]), 2)
        assert folded.anchors.tolist() == [1, 2]
        assert folded.groups.tolist() == [0, 0, 1, 0]

    @pytest.mark.parametrize("d", [3, 17, 128])
    def test_equal_anchors_keep_their_own_groups(self, d):
        hidden = torch.randn(1, d).repeat(40, 1)
        folded = fold(hidden, torch.linspace(2, 1, 40), 9)
        assert folded.anchors.tolist() == list(range(9))
        assert folded.groups.tolist() == [*range(9), *[0] * 31]

    def test_group_without_centrality_has_uniform_weights(self):
        hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
        folded = fold(hidden, torch.tensor([1.0, 0.0, 0.0]), 2)
        assert folded.weights.tolist() == [1.0, 0.5, 0.5]
        assert torch.isfinite(folded.vectors).all()

    def test_one_token_and_an_empty_page(self):
        hidden, alpha = page(1)
        assert len(fold(hidden, alpha, 1)) == 1
        empty = fold(torch.zeros(0, 8), torch.zeros(0), 0, torch.nn.Linear(8, 5))
        assert empty.vectors.shape == (0, 5)
        assert len(empty.groups) == 0

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype):
        hidden, alpha = page(dtype=dtype)
        folded = fold(hidden, alpha, 5)
        assert folded.vectors.dtype == torch.float32
        torch.testing.assert_close(folded.vectors, fold(hidden.float(), alpha.float(), 5).vectors)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_rejects_non_finite_values(self, bad):
        for spoil in (0, 1):
            hidden, alpha = page()
            (hidden, alpha)[spoil].view(-1)[3] = bad
            with pytest.raises(ValueError, match="NaN or infinite"):
                fold(hidden, alpha, 4)

    def test_rejects_invalid_arguments(self):
        hidden, alpha = page()
        for m in (0, 21, -1):
            with pytest.raises(ValueError, match=f"into {m} vectors"):
                fold(hidden, alpha, m)
        with pytest.raises(ValueError, match="negative"):
            fold(hidden, -alpha, 4)
        with pytest.raises(ValueError, match="fold requires"):
            fold(hidden, alpha[:-1], 4)
