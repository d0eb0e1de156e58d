"""k-means in torch, against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch.nn.functional import normalize

from anchorfold.compressors import clustering
from anchorfold.compressors.clustering import fill_empty, kmeans, nearest_centre


def page_like(n, d, seed):
    """Unit vectors around some directions, with repeated vectors as on blank paper."""
    g = torch.Generator().manual_seed(seed)
    topics = torch.randn(n // 8 + 1, d, generator=g)
    x = topics[torch.randint(0, len(topics), (n,), generator=g)] + 0.7 * torch.randn(n, d, generator=g)
    x[: n // 10] = x[0]
    return normalize(x, dim=1)


def inertia(x, labels, weights=None):
    weights = torch.ones(len(x)) if weights is None else weights
    m = int(labels.max()) + 1
    total = torch.zeros(m).index_add_(0, labels, weights)
    means = torch.zeros(m, x.shape[1]).index_add_(0, labels, x * weights[:, None]) / total.clamp(min=1e-9)[:, None]
    return float((weights * (x - means[labels]).square().sum(1)).sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_inertia_is_within_one_percent_of_scikit_learn(weighted):
    ours, theirs = [], []
    for seed in range(6):
        x = page_like(400, 32, seed)
        weights = torch.rand(400, generator=torch.Generator().manual_seed(seed)) if weighted else None
        fitted = KMeans(40, n_init=1, max_iter=100, random_state=seed).fit(
            x.double().numpy(), sample_weight=None if weights is None else weights.numpy()
        )
        ours.append(inertia(x, kmeans(x, 40, seed, weights), weights))
        theirs.append(inertia(x, torch.from_numpy(fitted.labels_.astype(np.int64)), weights))
    assert np.mean(ours) <= 1.01 * np.mean(theirs)


def test_result_is_a_fixed_point_of_scikit_learn():
    x = page_like(200, 16, 0)
    labels = kmeans(x, 12)
    centres = torch.stack([x[labels == i].mean(0) for i in range(12)])
    fitted = KMeans(12, init=centres.double().numpy(), n_init=1).fit(x.double().numpy())
    assert torch.equal(labels, torch.from_numpy(fitted.labels_.astype(np.int64)))


def test_blocks_of_centres_cost_less_than_one_percent(monkeypatch):
    pages = [page_like(700, 32, seed) for seed in range(4)]
    alone = [inertia(x, kmeans(x, 350, seed)) for seed, x in enumerate(pages)]
    monkeypatch.setattr(clustering, "MAX_SEQUENTIAL", 100)
    blocks = [inertia(x, kmeans(x, 350, seed)) for seed, x in enumerate(pages)]
    assert blocks != alone
    assert np.mean(blocks) <= 1.01 * np.mean(alone)


def test_seed_and_precision():
    x = page_like(150, 16, 1)
    assert torch.equal(kmeans(x, 20, 3), kmeans(x, 20, 3))
    assert not torch.equal(kmeans(x, 20, 3), kmeans(x, 20, 4))
    single, double = kmeans(x, 20, 3), kmeans(x.double(), 20, 3)
    assert inertia(x, single) == pytest.approx(inertia(x, double), rel=0.02)


@pytest.mark.parametrize(("distinct", "m"), [(1, 5), (3, 7), (9, 9)])
def test_no_empty_clusters_with_repeated_vectors(distinct, m):
    x = page_like(distinct, 8, 0).repeat(20, 1)[: max(m, distinct) + 2]
    assert sorted(set(kmeans(x, m).tolist())) == list(range(m))


def test_empty_clusters_take_the_farthest_vectors():
    x = torch.tensor([[0.0], [0.1], [5.0], [9.0]])
    assert fill_empty(x, torch.tensor([0, 0, 0, 0]), 2).tolist() == [0, 0, 0, 1]
    assert nearest_centre(x, torch.tensor([[0.0], [0.0], [9.0]])).tolist() == [0, 0, 2, 2]
