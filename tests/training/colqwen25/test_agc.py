"""Gradients reach the universal tokens, and what is trained is what is indexed."""

import torch

import anchorfold
from anchorfold.backbones.colqwen import ColQwen
from anchorfold.testing import tiny
from training.colqwen25.collator import PairCollator
from training.colqwen25.model import build, clustered_pages, saliency_of_pages
from training.colqwen25.recipe import read_recipe


def test_trained_pages_are_indexed_pages_and_teach_the_tokens(tmp_path, images):
    tiny.make("colqwen2.5", tmp_path / "base")
    recipe = read_recipe("shapes", [f"model.base={tmp_path / 'base'}", "agc.tokens=4", "agc.cap=5"])
    retriever, model = build(recipe, torch.device("cpu"))
    rows = [{"query": "a b", "image": image, "page": str(n), "relevant": [str(n)]} for n, image in enumerate(images)]
    batch = PairCollator(retriever)(rows)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    torch.manual_seed(0)
    vectors, saliency = saliency_of_pages(retriever, model, batch["pages"], batch["visual"])
    pages, mask = clustered_pages(vectors, batch["visual"], saliency, 5)
    assert pages.shape[:2] == mask.shape == (4, 5)
    assert mask.all()
    (tokens,) = (p for name, p in model.named_parameters() if "trainable_tokens" in name)
    assert tokens.shape == (4, 32)
    torch.manual_seed(1)
    (pages * torch.randn_like(pages)).sum().backward()
    # B of each adapter begins at 0, so that its A learns nothing in the first step; the tokens do.
    assert (tokens.grad.abs().amax(1) > 0).all()

    model.eval()
    with torch.no_grad():
        vectors, saliency = saliency_of_pages(retriever, model, batch["pages"], batch["visual"])
        pages, _ = clustered_pages(vectors, batch["visual"], saliency, 5)
    indexed = retriever.encode_documents(images, anchorfold.AGC(cap=5))
    for one, other in zip(pages, indexed, strict=True):
        assert torch.allclose(one, other.vectors, atol=1e-5)


def test_a_complete_checkpoint_contains_its_tokens(tmp_path, images):
    model = anchorfold.load(tiny.make("colqwen2.5", tmp_path / "base"), device="cpu")
    assert isinstance(model, ColQwen)
    model.add_universal_tokens(6)
    for part in (model.model, model.tokenizer, model.image_processor):
        part.save_pretrained(tmp_path / "whole")
    loaded = anchorfold.load(tmp_path / "whole", device="cpu")
    assert loaded.layer_settings.universal == 6
    assert loaded.fingerprint == model.fingerprint
    for one, other in zip(*(m.encode_documents(images, anchorfold.AGC(cap=5)) for m in (model, loaded)), strict=True):
        assert torch.equal(one.vectors, other.vectors)


def test_new_tokens_are_small_and_differ(tmp_path):
    tiny.make("colqwen2.5", tmp_path)
    model = anchorfold.load(tmp_path, device="cpu")
    assert isinstance(model, ColQwen)
    ids = model.add_universal_tokens(6)
    rows = model.model.get_input_embeddings().weight[ids].detach()
    assert 0.01 < rows.std() < 0.03
    assert rows.unique(dim=0).shape[0] == 6
