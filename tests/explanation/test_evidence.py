import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfold import maxsim
from anchorfold.backbones.encoder import label_pieces
from anchorfold.core.fold import fold
from anchorfold.core.scoring import score_retention
from anchorfold.explanation.evidence import compute_evidence, rasterize
from anchorfold.page import PatchGrid


def page_of(n=20, m=5, d=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=generator)
    return fold(hidden, torch.rand(n, generator=generator), m), fold(hidden, torch.ones(n), n)


def query_of(t=4, d=8, seed=1):
    return torch.nn.functional.normalize(torch.randn(t, d, generator=torch.Generator().manual_seed(seed)), dim=1)


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 99))
def test_maps_add_up_to_the_score(n, t, seed):
    small, _ = page_of(n, max(1, n // 3), seed=seed)
    query = query_of(t, seed=seed)
    answer = compute_evidence(query, list(range(t)), [str(i) for i in range(t)], small)
    best = (query @ small.vectors.T).amax(1)
    assert torch.allclose(answer.scores, best, atol=1e-5)
    assert torch.allclose(answer.maps.sum(1), best.clamp(min=0), atol=1e-4)
    assert torch.allclose(answer.query_map, answer.maps.sum(0))
    assert answer.score == pytest.approx(float(maxsim([query], [small])[0, 0]), abs=1e-4)


def test_folded_vector_is_distributed_by_weight():
    small, _ = page_of()
    query = small.vectors[2:3]
    answer = compute_evidence(query, [0], ["word"], small)
    members = small.groups == 2
    assert torch.allclose(answer.maps[0, members], small.weights[members], atol=1e-5)
    assert answer.maps[0, ~members].abs().max() == 0


def test_special_tokens_and_subwords():
    small, _ = page_of()
    query = query_of(4)
    answer = compute_evidence(query, [None, 0, 0, 1], ["two", "one"], small)
    alone = compute_evidence(query[1:3], [0, 0], ["two"], small)
    assert torch.allclose(answer.maps[0], alone.maps[0])
    best = (query @ small.vectors.T).amax(1)
    assert torch.allclose(answer.scores, torch.stack((best[1] + best[2], best[3])))
    assert answer.score == pytest.approx(float(best.sum()), abs=1e-5)  # the special token's part included


def test_score_retention_of_the_full_page():
    small, full = page_of()
    query = query_of()
    assert score_retention(query, full, full) == pytest.approx(100)
    assert score_retention(query, full, small) < 100
    with pytest.raises(ValueError, match="labels"):
        compute_evidence(query, [0], ["x"], small)


def test_rasterize_tiles_and_thumbnail():
    values = torch.arange(6.0)
    assert torch.allclose(rasterize(values, PatchGrid.single(2, 3), 3, 2), values.view(2, 3))
    tiled = PatchGrid.tiled(2, 1, 2, 2, thumbnail=True)
    only_thumbnail = torch.zeros(12)
    only_thumbnail[8:] = 1.0
    picture = rasterize(only_thumbnail, tiled, 8, 4)
    assert torch.allclose(picture, torch.full((4, 8), 0.5))  # its patches are twice as large as those of the tiles
    only_right = torch.zeros(12)
    only_right[4:8] = 1.0
    assert rasterize(only_right, tiled, 8, 4)[:, :4].sum() == 0


def test_words_of_tokens():
    words, labels = label_pieces("net revenue", ["<bos>", "Query", ":", " net", " rev", "enue", "<pad>", "\n"])
    assert words == ["net", "revenue"]
    assert labels == [None, None, None, 0, 1, 1, None, None]
    assert label_pieces("Caf\u00e9 x", ["\u2581caf\u00e9", "\u2581x", "</s>"])[1] == [0, 1, None]
    assert label_pieces("abc", ["zzz"])[1] == [None]


@pytest.mark.parametrize("kind", ["colpali", "colqwen2", "colqwen2.5", "colmodernvbert", "nemotron"])
def test_query_labels_of_backbones(models, kind):
    query = models[kind].explain_query("net revenue")
    assert len(query.labels) == len(query.vectors)
    assert query.words == ["net", "revenue"]
    assert {label for label in query.labels if label is not None} == {0, 1}


def test_query_labels_of_nano():
    import anchorfold

    query = anchorfold.load("nano").explain_query("Net revenue, net of tax")
    assert query.labels == list(range(len(query.words)))
    assert query.words[:2] == ["net", "revenue"]
