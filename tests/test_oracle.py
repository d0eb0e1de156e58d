"""The exact cases in tests/oracle, computed in float64 from the paper's equations."""

from pathlib import Path

import numpy as np
import pytest
import torch

from anchorfold.core.budget import vector_budget
from anchorfold.core.focus import centrality, visual_graph
from anchorfold.core.fold import fold

CASES = sorted((Path(__file__).parent / "oracle").glob("*.npz"))
assert len(CASES) == 6


@pytest.fixture(params=CASES, ids=lambda p: p.stem)
def case(request):
    data = np.load(request.param)
    return {k: torch.from_numpy(data[k]) if data[k].ndim else data[k].item() for k in data.files}


def run(case, dtype):
    graphs = [visual_graph(layer.to(dtype), case["visual"]) for layer in case["attention"]]
    alpha = centrality(graphs, int(case["steps"]))
    n = len(case["visual"])
    ratio, cap = case["ratio"], int(case["cap"])
    m = vector_budget(n, ratio if ratio > 0 else None, cap if cap > 0 else None)
    weight, bias = case["weight"].to(alpha.dtype), case["bias"].to(alpha.dtype)
    return alpha, fold(case["hidden"].to(dtype), alpha, m, lambda z: z @ weight + bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matches_the_oracle(case, dtype):
    alpha, folded = run(case, dtype)
    assert alpha.dtype == folded.vectors.dtype == dtype
    torch.testing.assert_close(alpha.double(), case["alpha"], atol=1e-5, rtol=0)
    assert folded.anchors.tolist() == case["anchors"].tolist()
    assert folded.groups.tolist() == case["groups"].tolist()
    torch.testing.assert_close(folded.vectors.double(), case["vectors"], atol=1e-5, rtol=0)
