"""Errors of the model are distinguished from errors of a page."""

import pytest
import torch
from PIL import Image

import anchorfold
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.errors import BrokenModelError, UnreadableAttentionError
from tests.conftest import KINDS

FAILURES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
    NotImplementedError("Could not run 'aten::foo' with arguments from the 'MPS' backend."),
    TypeError("got BFloat16 for an argument that wants Float"),
]


def failing(error):
    def hook(*_):
        raise error

    return hook


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
def test_a_forward_pass_that_fails_is_the_models_fault(models, images, kind, error):
    model = models[kind]
    handle = model.attention_layers[2].register_forward_pre_hook(failing(error))
    try:
        for compressor in (anchorfold.FullIndex(), anchorfold.AnchorFold(ratio=0.5)):
            with pytest.raises(BrokenModelError, match="the model cannot run") as caught:
                model.encode_documents(images[:1], compressor)
            assert caught.value.__cause__ is error
        with pytest.raises(BrokenModelError):
            model.encode_queries(["net revenue"])
    finally:
        handle.remove()
    assert len(model.encode_documents(images[:1])) == 1


def test_what_to_do_is_said(models, images):
    model = models["colpali"]
    for error, advice in ((FAILURES[0], "fewer pages at once"), (FAILURES[2], "device cpu and dtype float32")):
        handle = model.attention_layers[0].register_forward_pre_hook(failing(error))
        with pytest.raises(BrokenModelError, match=advice):
            model.encode_documents(images[:1])
        handle.remove()


def test_an_attention_that_cannot_be_read_is_the_models_fault(models, images, monkeypatch):
    model = models["colpali"]
    strangers = [torch.nn.Identity() for _ in model.attention_layers]
    for stranger in strangers:
        stranger.config = model.attention_layers[0].config
    monkeypatch.setattr(type(model), "attention_layers", strangers)
    with pytest.raises(UnreadableAttentionError, match="AttentionInterface") as caught:
        list(model.page_states(images[:1], [PropagatedAttention(1)]))
    assert isinstance(caught.value, BrokenModelError)


def test_a_compressor_that_runs_out_of_memory_is_not_the_pages_fault(models, images, monkeypatch):
    monkeypatch.setattr(anchorfold.AnchorFold, "reduce", failing(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(BrokenModelError, match="fewer pages at once"):
        models["colpali"].encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.5))


class TestPages:
    def test_a_shape_that_the_processor_refuses(self, models):
        with pytest.raises(ValueError, match="aspect ratio"):
            models["colqwen2.5"].encode_documents([Image.new("RGB", (6000, 20))])

    @pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), RuntimeError("bad page"), KeyError("x")])
    def test_whatever_the_processor_raises(self, models, images, monkeypatch, error):
        model = models["colpali"]
        monkeypatch.setattr(model.processor, "process_images", failing(error))
        with pytest.raises(ValueError, match="cannot prepare the page"):
            model.encode_documents(images[:1])

    @pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="requires torch 2.8")
    def test_a_device_that_fails_while_a_page_is_moved_there(self, models, images, monkeypatch):
        model = models["colpali"]
        monkeypatch.setattr(model, "_to_device", failing(torch.AcceleratorError("CUDA error: device-side assert", 1)))
        with pytest.raises(BrokenModelError, match="device-side assert"):
            model.encode_documents(images[:1])

    def test_numbers_that_are_none(self, models, images):
        model = models["colpali"]
        handle = model.projection.register_forward_pre_hook(lambda _, args: (args[0] * float("nan"),))
        try:
            with pytest.raises(ValueError, match="NaN"):
                model.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.5))
        finally:
            handle.remove()

    def test_an_image_that_cannot_be_opened(self, models, tmp_path):
        (tmp_path / "page.png").write_bytes(b"no picture")
        with pytest.raises(OSError, match="cannot identify"):
            models["colpali"].encode_documents([tmp_path / "page.png"])
