import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from pypdfium2 import PdfDocument

from anchorfold import AnchorFold, Index
from anchorfold.demo.sample_documents import handbook
from anchorfold.documents.original_pages import find_image
from anchorfold.errors import AnchorFoldError
from anchorfold.explanation.heatmap import draw_explanation, explain, overlay_heatmap
from anchorfold.page import PatchGrid
from tests.drawn_figures import recorded_figures, shows_colours
from tests.number_reader import NumberReader, read_number, write_pdf


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    with PdfDocument(bytes(handbook().output())) as whole, PdfDocument.new() as one_page:
        one_page.import_pages(whole, [5])
        one_page.save(folder / "handbook.pdf")
    index = Index.create(folder / "my.index", compressor=AnchorFold(ratio=0.1))
    index.add(folder / "handbook.pdf")
    return index


def test_heatmap_matches_the_text_position(index):
    explanation = explain(index, "pension insurance", "handbook.pdf", 1)
    assert explanation.evidence.words == ("pension", "insurance")
    assert explanation.is_original
    assert explanation.retention is not None
    assert 50 < explanation.retention <= 105
    rows = explanation.grid.tiles[0].rows
    where = explanation.evidence.query_map.view(rows, -1).sum(1)
    assert where[: rows // 3].sum() > 0.8 * where.sum()  # the page's text is in its upper third


def test_retention_is_unknown_if_the_full_page_does_not_match(index, monkeypatch):
    opposite = -index.encoder.explain_query("pension").vectors
    monkeypatch.setattr(index.encoder, "encode_documents", lambda _: [opposite])
    assert explain(index, "pension", "handbook.pdf", 1).retention is None


def test_query_and_word_panels(index):
    explanation = explain(index, "pension insurance employer wages", "handbook.pdf", 1, compare_full=False)
    assert explanation.retention is None
    unlit = replace(explanation.evidence, maps=torch.zeros_like(explanation.evidence.maps))
    picture, dark = (np.asarray(draw_explanation(e)) for e in (explanation, replace(explanation, evidence=unlit)))
    lit = (picture != dark).any(-1)[74:-34]  # below the title, above the legend
    query, words = np.split(lit, [lit.shape[1] * 6 // 10], axis=1)  # the query on the left, its words on the right
    assert query.mean() > 0.001
    assert words.mean() > 0.0001


def test_overlay_colours_positive_values():
    page = Image.new("RGB", (80, 40), "white")
    lit = np.asarray(overlay_heatmap(page, torch.tensor([1.0, 0.0]), PatchGrid.single(1, 2), 1.0, 80))
    assert (lit[:, 45:] == 255).all()
    assert (lit[:, :35, 1] < 160).all()


def test_deleted_or_changed_document(tmp_path):
    path = write_pdf(tmp_path / "a.pdf", [5])
    index = Index.create(tmp_path / "a.index", NumberReader())
    index.add(path)
    row = vars(index.page("a.pdf", 1))
    assert find_image(row, 40_000)[1]
    write_pdf(path, [6, 7])
    image, original = find_image(row, 40_000)
    assert not original
    assert read_number(image) == 5  # its thumbnail shows the page as it was
    os.unlink(path)
    with pytest.raises(AnchorFoldError, match="no thumbnails"):
        find_image({**row, "thumbnail": b""}, 40_000)


def test_case_study(index, tmp_path):
    from anchorfold.evaluation.figures.case_study import draw_case_study

    row = vars(index.page("handbook.pdf", 1))
    image, _ = find_image(row, index.encoder.page_pixels)
    with recorded_figures() as figures:
        draw_case_study(
            index.encoder,
            image,
            "pension fund",
            ["anchorfold", "sap"],
            tmp_path / "case.png",
            boxes=[(0, 0, 0.5, 0.25)],
        )
    panels = figures["case.png"].axes
    titles = [panel.get_title() for panel in panels]
    for title, start in zip(titles, [f"{m}, {r}x: " for m in ("AnchorFold", "SAP") for r in (5, 10, 20)], strict=True):
        assert re.fullmatch(rf"{start}\d+\.\d % kept", title)
    retention = explain(index, "pension fund", "handbook.pdf", 1).retention
    assert float(titles[1].split()[-3]) == pytest.approx(retention, abs=1)  # the index is of that ratio, in 4 bits
    for panel in panels:
        picture = np.asarray(panel.get_images()[0].get_array()).astype(int)
        assert (abs(picture[..., 0] - picture[..., 2]) > 20).any()  # the page is black on white: colour is evidence
        (frame,) = panel.patches
        assert (frame.get_width(), frame.get_height()) == (picture.shape[1] / 2, picture.shape[0] / 4)
    assert shows_colours(tmp_path / "case.png", ["#C00000"])


@pytest.mark.parametrize("text", ["0.1,0.2,0.5", "a,b,c,d", "0.5,0,0.1,1", "0,0,1,1.2"])
def test_invalid_box(text):
    from anchorfold.evaluation.figures.case_study import parse_box

    with pytest.raises(AnchorFoldError, match="is no box"):
        parse_box(text)
