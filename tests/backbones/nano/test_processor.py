import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from anchorfold.backbones.nano.processor import NanoImageProcessor

PROCESSOR = NanoImageProcessor()


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_never_more_than_the_limit_and_whole_patches(width, height):
    w, h = PROCESSOR.fit_size(width, height)
    assert w % 32 == h % 32 == 0
    assert 1 <= (w // 32) * (h // 16) <= PROCESSOR.max_patches


@pytest.mark.parametrize("size", [(1240, 1754), (1754, 1240), (800, 3600), (3600, 800)])
def test_aspect_ratio_is_kept(size):
    w, h = PROCESSOR.fit_size(*size)
    assert w / h == pytest.approx(size[0] / size[1], rel=0.06)
    assert (w // 32) * (h // 16) > 0.9 * PROCESSOR.max_patches


def test_a_very_long_page_gives_way_in_its_length_alone():
    assert PROCESSOR.fit_size(20, 900_000) == (32, PROCESSOR.max_patches * 16)
    width, height = PROCESSOR.fit_size(900_000, 20)
    assert (width // 32) * (height // 16) <= PROCESSOR.max_patches < (width // 32 + 1) * (height // 16)


def test_small_pages_are_not_blown_up():
    assert PROCESSOR.fit_size(320, 640) == (320, 640)


def test_batches_are_padded_with_white():
    batch = PROCESSOR.preprocess([Image.new("RGB", (64, 128), "black"), Image.new("L", (128, 64), 0)])
    assert batch["pixel_values"].shape == (2, 1, 128, 128)
    assert batch["patch_grid"].tolist() == [[8, 2], [4, 4]]
    assert (batch["pixel_values"][0, 0, :, 64:] == 1).all()
    assert (batch["pixel_values"][0, 0, :, :64] == -1).all()


def test_round_trip(tmp_path):
    NanoImageProcessor(max_patches=400).save_pretrained(tmp_path)
    assert NanoImageProcessor.from_pretrained(tmp_path).max_patches == 400
