"""Centrality of the vision tower equals whole matrices of its eager attention, averaged over each token's patches."""

import sys

import pytest
import torch
import transformers

import anchorfold
from anchorfold.attention import tap
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.attention.vision_tower import TowerScores, VisionTower, find_tower, window_order
from anchorfold.core.focus import centrality
from anchorfold.errors import InvalidArgumentError, UnreadableAttentionError
from anchorfold.testing import tiny
from tests.conftest import KINDS

STEPS = 3
METHODS = [anchorfold.AnchorFold, anchorfold.SpreadFold, anchorfold.FocusClustering]


@pytest.fixture(scope="module")
def retriever(models, tmp_path_factory):
    def load(kind):
        if kind not in tiny.MULTIVECTOR_MAKERS:
            return models[kind]
        pytest.importorskip("sentence_transformers")
        if not hasattr(transformers, "UltraVBertModel"):
            pytest.skip("this version of transformers has no UltraVBERT")
        return anchorfold.load(tiny.make(kind, tmp_path_factory.mktemp("checkpoint") / kind), device="cpu")

    return load


def eager_matrices(model, inputs, blocks, monkeypatch):
    """Attention `(H, n, n)` of every image in each block, from the eager attention of the block's own module."""
    caught: dict[torch.nn.Module, list[torch.Tensor]] = {block: [] for block in blocks}
    source = sys.modules[type(blocks[0]).__module__]
    eager = source.eager_attention_forward

    def record(module, *args, **options):
        output, weights = eager(module, *args, **options)
        caught.get(module, []).extend(weights.detach())
        return output, weights

    configs = [(config, config._attn_implementation) for config in tap._configs(model.model)]
    with monkeypatch.context() as patch:
        patch.setattr(source, "eager_attention_forward", record)
        try:
            for config, _ in configs:
                config._attn_implementation_internal = "eager"
            model._hidden(inputs)
        finally:
            for config, before in configs:
                config._attn_implementation_internal = before
    return [caught[block] for block in blocks]


def patches_of_tokens(model, batch):
    """The patches of each visual token of each page: those on which its embedding depends after the last block."""
    parents = {child: module for module in model.model.modules() for child in module.children()}
    attention = [m for m in find_tower(model.model).module.modules() if hasattr(m, "is_causal") and m in parents]
    caught = {}

    def cut(module, args, output):
        caught["patches"] = (output[0] if isinstance(output, tuple) else output).detach().requires_grad_()
        return (caught["patches"], *output[1:]) if isinstance(output, tuple) else caught["patches"]

    def embeddings(module, args, options):
        caught["tokens"] = options["hidden_states"] if "hidden_states" in options else args[0]

    last = parents[[m for m in attention if type(m).__name__.endswith("Attention")][-1]]
    first = parents[parents[model.attention_layers[0]]][0]  # of the language layers
    with (
        torch.enable_grad(),
        last.register_forward_hook(cut),
        first.register_forward_pre_hook(embeddings, with_kwargs=True),
    ):
        model.forward(batch.inputs)
    tokens = caught["tokens"] @ torch.randn(caught["tokens"].shape[-1], generator=torch.Generator().manual_seed(0))
    pages: list[list[torch.Tensor]] = []
    for b, visual in enumerate(batch.visual):
        pages.append([])
        for position in visual.nonzero().flatten().tolist():
            (gradient,) = torch.autograd.grad(tokens[b, position], caught["patches"], retain_graph=True)
            pages[-1].append(gradient.flatten(0, -2).abs().sum(-1).nonzero().flatten())
    return pages


def symmetrised(graph):
    graph = graph + graph.transpose(1, 2)
    return graph / graph.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", [*KINDS, *tiny.MULTIVECTOR_MAKERS])
class TestEveryTower:
    def test_equals_eager_attention(self, retriever, images, kind, monkeypatch):
        model = retriever(kind)
        batch = model.prepare_pages(images[:3])
        blocks = find_tower(model.model).blocks
        assert model.layer_settings.tower == len(blocks) > 0
        matrices = eager_matrices(model, batch.inputs, blocks, monkeypatch)
        owners = patches_of_tokens(model, batch)
        for graph, change in (("vision-tower", lambda graph: graph), ("vision-tower-symmetric", symmetrised)):
            signals = [PropagatedAttention(block, STEPS, graph) for block in range(len(blocks))]
            states = model.prepared_states(batch, signals)
            for signal, block in zip(signals, matrices, strict=True):
                patches = torch.cat([centrality([change(image)], STEPS) for image in block])
                for state, page in zip(states, owners, strict=True):
                    expected = torch.stack([patches[owner].mean() for owner in page])
                    torch.testing.assert_close(state.signals[signal], expected, atol=1e-5, rtol=1e-4)

    def test_batch_size_does_not_change_pages(self, retriever, images, kind):
        model = retriever(kind)
        signals = METHODS[0](ratio=0.3, graph="vision-tower").signals(model.layer_settings)
        alone, together = (list(model.page_states(images, signals, batch_size=n)) for n in (1, len(images)))
        for method in METHODS:
            compressor = method(ratio=0.3, graph="vision-tower")
            for one, other in zip(alone, together, strict=True):
                page, same = (model.compress_page(state, compressor) for state in (one, other))
                torch.testing.assert_close(page.vectors, same.vectors, atol=1e-5, rtol=0)
                assert page.anchors.tolist() == same.anchors.tolist()


class TestWindow:
    def test_default_is_by_depth(self):
        settings = LayerSettings((3, 4), (3, 4), layers=6, tower=27)
        signals = anchorfold.AnchorFold(ratio=0.1, graph="vision-tower").signals(settings)
        assert [signal.layer for signal in signals] == [18, 19, 20, 21, 22, 23]
        signals = anchorfold.AnchorFold(ratio=0.1, window=(0, 1), graph="vision-tower").signals(settings)
        assert [signal.layer for signal in signals] == [0, 1]

    def test_windows_of_qwen25(self, models):
        """Blocks with attention within windows are left out; others are numbered."""
        visual = models["colqwen2.5"].model.visual
        assert find_tower(models["colqwen2.5"].model).blocks == [visual.blocks[1].attn]

    @pytest.mark.parametrize("shape", [(4, 4), (5, 7), (1, 9), (10, 3)])
    def test_order_equals_that_of_transformers(self, shape):
        vision_utils = pytest.importorskip("transformers.vision_utils")
        rows, columns = shape
        grid = torch.tensor([[1, 2 * rows, 2 * columns]])
        expected, _ = vision_utils.get_vision_window_index(grid, spatial_merge_size=2, window_size=56, patch_size=14)
        assert torch.equal(window_order(rows, columns, side=2), expected)

    def test_settings_given_by_the_caller(self, checkpoints):
        """The number of blocks is a fact of the model, whatever settings it gets."""
        model = anchorfold.load(checkpoints["colqwen3"], layer_settings=LayerSettings((0, 1), (0, 1), 6, tower=99))
        assert model.layer_settings.tower == 3
        model.layer_settings = LayerSettings((1, 2), (1, 2), 6)
        assert (model.layer_settings.window, model.layer_settings.tower) == ((1, 2), 3)


class TestWithoutATower:
    @pytest.mark.parametrize("method", METHODS)
    def test_index_creation_is_refused(self, method, tmp_path):
        with pytest.raises(InvalidArgumentError, match="vision-tower requires a vision tower"):
            anchorfold.Index.create(tmp_path / "i", "nano", method(ratio=0.1, graph="vision-tower"))

    def test_tap(self, models):
        model = models["colpali"].model.vlm.language_model
        with pytest.raises(UnreadableAttentionError, match="GemmaModel has no vision tower: choose another graph"):
            tap.AttentionTap(model, [], [PropagatedAttention(0, graph="vision-tower")])

    def test_block_out_of_range(self, models, images):
        compressor = anchorfold.AnchorFold(ratio=0.1, window=(1, 5), graph="vision-tower")
        with pytest.raises(UnreadableAttentionError, match="out of range: the model has 2 blocks with full attention"):
            models["colpali"].encode_documents(images[:1], compressor)

    @pytest.mark.parametrize(("patches", "tokens"), [(17, 16), (16, 5), (18, 2), (16, 0)])
    def test_patches_that_are_no_tokens(self, patches, tokens):
        """A class token, or tokens that are not squares of patches."""
        signal = PropagatedAttention(0, graph="vision-tower")
        scores = TowerScores(VisionTower(torch.nn.Identity(), [torch.nn.Identity()]), [signal])
        scores.patches[signal].append(torch.ones(patches))
        with pytest.raises(UnreadableAttentionError, match=f"{patches} patches of Identity do not .* {tokens} visual"):
            scores.tokens([tokens])
