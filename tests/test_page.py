import torch

from anchorfold.page import EncodedPage, PatchGrid


def test_single_grid_covers_the_page_in_reading_order():
    boxes = PatchGrid.single(2, 4).boxes()
    assert boxes.shape == (8, 4)
    torch.testing.assert_close(boxes[0], torch.tensor([0, 0, 0.25, 0.5]))
    torch.testing.assert_close(boxes[-1], torch.tensor([0.75, 0.5, 1, 1]))


def test_tiles_then_thumbnail():
    grid = PatchGrid.tiled(across=2, down=3, rows=2, columns=2, thumbnail=True)
    assert len(grid) == 7 * 4
    boxes = grid.boxes()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    torch.testing.assert_close(area[:24].sum(), torch.tensor(1.0))
    torch.testing.assert_close(area[24:].sum(), torch.tensor(1.0))
    torch.testing.assert_close(boxes[4], torch.tensor([0.5, 0, 0.75, 1 / 6]))


def test_no_tiles():
    assert PatchGrid(()).boxes().shape == (0, 4)


def test_repr_of_an_encoded_page():
    groups = torch.arange(128) % 32
    page = EncodedPage(torch.rand(32, 64), torch.arange(32), groups, torch.full((128,), 0.25), PatchGrid.single(8, 16))
    assert repr(page) == "EncodedPage(vectors=(32, 64) float32, full=128, grid=8x16)"
    tiled = PatchGrid.tiled(across=1, down=2, rows=2, columns=3, thumbnail=False)
    assert repr(EncodedPage(page.vectors.half(), page.anchors, groups, page.weights, tiled)).endswith(
        "(32, 64) float16, full=128, grid=2x3 + 2x3)"
    )
    assert repr(EncodedPage(page.vectors, page.anchors, groups, page.weights)).endswith("grid=None)")
