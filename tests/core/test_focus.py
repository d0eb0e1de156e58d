import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorfold.core.focus import centrality, layer_score, propagate, visual_graph


def attention(heads=3, tokens=12, seed=0, dtype=torch.float32):
    return torch.randn(heads, tokens, tokens, generator=torch.Generator().manual_seed(seed)).softmax(-1).to(dtype)


class TestVisualGraph:
    def test_rows_sum_to_one(self):
        graph = visual_graph(attention(), [1, 4, 5, 9])
        assert graph.shape == (3, 4, 4)
        torch.testing.assert_close(graph.sum(-1), torch.ones(3, 4))

    def test_mask_and_positions_agree(self):
        mask = torch.zeros(12, dtype=torch.bool)
        mask[[1, 4, 5]] = True
        assert torch.equal(visual_graph(attention(), mask), visual_graph(attention(), torch.tensor([1, 4, 5])))

    def test_keeps_the_order_of_positions(self):
        a = attention()
        torch.testing.assert_close(visual_graph(a, [5, 1])[:, 0, 1], a[:, 5, 1] / (a[:, 5, 5] + a[:, 5, 1]))

    def test_row_without_visual_mass_becomes_uniform(self):
        a = attention()
        a[:, 4, :] = 0
        a[:, 4, 0] = 1
        graph = visual_graph(a, [4, 5, 6, 7])
        torch.testing.assert_close(graph[:, 0], torch.full((3, 4), 0.25))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype):
        graph = visual_graph(attention(dtype=dtype), [1, 2, 3])
        assert graph.dtype == torch.float32
        torch.testing.assert_close(graph.sum(-1), torch.ones(3, 3))

    def test_one_token_and_none(self):
        assert visual_graph(attention(), [3]).tolist() == [[[1.0]]] * 3
        assert visual_graph(attention(), []).shape == (3, 0, 0)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_rejects_non_finite_values(self, bad):
        a = attention()
        a[0, 0, 0] = bad
        with pytest.raises(ValueError, match="NaN or infinite"):
            visual_graph(a, [0, 1])

    def test_rejects_wrong_shapes_and_positions(self):
        with pytest.raises(ValueError, match=r"\(heads, tokens, tokens\)"):
            visual_graph(torch.rand(4, 4), [0])
        with pytest.raises(ValueError, match="between 0 and 11"):
            visual_graph(attention(), [12])
        with pytest.raises(ValueError, match="3 entries for 12 tokens"):
            visual_graph(attention(), torch.ones(3, dtype=torch.bool))


class TestPropagate:
    @given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 1000))
    def test_mass_is_preserved(self, steps, n, seed):
        graph = visual_graph(attention(2, n, seed), range(n))
        torch.testing.assert_close(propagate(graph, steps).sum(-1), torch.ones(2))

    def test_one_step_is_the_mean_column(self):
        graph = visual_graph(attention(), range(12))
        torch.testing.assert_close(propagate(graph, 1), graph.mean(1))

    def test_uniform_graph_stays_uniform(self):
        torch.testing.assert_close(propagate(torch.full((2, 5, 5), 0.2)), torch.full((2, 5), 0.2))

    def test_steps_compose(self):
        graph = visual_graph(attention(), range(12)).double()
        expected = torch.linalg.matrix_power(graph.transpose(1, 2), 6) @ torch.full((12, 1), 1 / 12, dtype=torch.double)
        torch.testing.assert_close(propagate(graph, 6), expected[..., 0])

    @pytest.mark.parametrize("steps", [0, -1, 1.5, True])
    def test_rejects_invalid_depths(self, steps):
        with pytest.raises(ValueError, match="steps must be"):
            propagate(torch.ones(1, 1, 1), steps)


class TestCentrality:
    @given(st.integers(1, 15), st.integers(0, 1000))
    def test_mean_is_one_and_permutation_commutes(self, n, seed):
        graph = visual_graph(attention(3, n, seed), range(n))
        alpha = centrality([graph, graph.flip(0)])
        torch.testing.assert_close(alpha.mean(), torch.tensor(1.0))
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        moved = centrality([g[:, order][:, :, order] for g in (graph, graph.flip(0))])
        torch.testing.assert_close(moved, alpha[order], atol=1e-5, rtol=1e-5)

    def test_a_token_that_all_attend_to_is_most_central(self):
        graph = torch.full((2, 6, 6), 0.04)
        graph[:, :, 3] = 0.8
        assert int(centrality([graph]).argmax()) == 3

    def test_root_mean_square_over_heads(self):
        support = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
        rms = torch.tensor([(0.25 + 1.0) / 2, 0.25 / 2]).sqrt()
        torch.testing.assert_close(layer_score(support), rms / rms.mean())

    def test_requires_a_layer(self):
        with pytest.raises(ValueError, match="at least one layer"):
            centrality([])
