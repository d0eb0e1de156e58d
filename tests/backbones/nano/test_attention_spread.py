"""Spread of attention: 1 if uniform over the tokens that may be attended to."""

import pytest
import torch

from training.nano.attention_spread import attention_spread


@pytest.mark.parametrize("is_causal", [False, True])
def test_zero_queries_attend_uniformly(is_causal):
    query, key = torch.zeros(2, 9, 4), torch.randn(2, 9, 4)

    assert attention_spread(query, key, is_causal) == pytest.approx(1, abs=1e-5)


def test_attention_to_one_token_has_the_smallest_spread():
    query, key = torch.ones(1, 8, 4), torch.zeros(1, 8, 4)
    key[0, 3] = 1000

    assert attention_spread(query, key, is_causal=False) == pytest.approx(1 / 8)
