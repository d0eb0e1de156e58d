"""Shipped weights: loading, size, fingerprint and retrieval."""

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

import anchorfold
from anchorfold.backbones.nano.query import WEIGHTS, NanoQueryEncoder


def page(*lines):
    image = Image.new("L", (640, 480), 255)
    for i, line in enumerate(lines):
        ImageDraw.Draw(image).text((40, 40 + 44 * i), line, fill=0, font=ImageFont.load_default(22))
    return image


@pytest.fixture(scope="module")
def nano():
    return anchorfold.load("nano", device="cpu")


PAGES = [
    page("Installation of the printer", "connect the cable and start", "the configuration program"),
    page("Annual financial report", "revenue increased in the region", "employees and offices"),
    page("Linear algebra", "matrix multiplication and vector", "spaces over complex numbers"),
]


def test_small_and_calibrated(nano):
    assert sum(f.stat().st_size for f in Path(WEIGHTS).iterdir()) < 30e6
    assert nano.layer_settings.source == "shipped"
    assert not nano.is_causal


def test_query_encoder_equals_the_full_model(nano):
    encoder = NanoQueryEncoder()
    assert encoder.fingerprint == nano.fingerprint
    texts = ["Net revenue, by region 2024", "zxqvy unknownish", "", "caf\u00e9"]
    for alone, whole in zip(encoder.encode_queries(texts), nano.encode_queries(texts), strict=True):
        assert torch.allclose(torch.from_numpy(alone), whole, atol=1e-6)


def test_the_fingerprint_does_not_depend_on_precision(nano):
    half = anchorfold.load("nano", device="cpu", dtype=torch.float16)
    assert half.fingerprint == nano.fingerprint


@pytest.mark.parametrize("ratio", [1, 0.2])
def test_finds_the_right_page_from_pixels(nano, ratio):
    pages = nano.encode_documents(PAGES, anchorfold.AnchorFold(ratio=ratio))
    queries = nano.encode_queries(["installation of the printer", "financial report", "matrix multiplication"])
    assert anchorfold.maxsim(queries, pages).argmax(1).tolist() == [0, 1, 2]


def test_full_page_has_about_1600_patches(nano):
    (encoded,) = nano.encode_documents([Image.new("L", (1240, 1754), 255)])
    assert 1400 < encoded.full <= 1600
    assert torch.isfinite(encoded.vectors).all()
