"""Evaluation sets (scans, posters, slides), false matches, the perfect reader and probes."""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest
from PIL import Image

import anchorfold
from anchorfold.backbones.nano.query import WEIGHTS
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.evaluation.corpus import local_corpus
from tests.backbones.nano.test_training import TEXT, write_pdf
from tests.drawn_figures import points, recorded_figures
from training.nano import (
    corpus,
    evaluation_set,
    false_matches,
    figures,
    perfect_reader,
    posters,
    probe,
    scan_effects,
    scanned_corpus,
    slides,
    synthetic_text,
    text_generator,
)
from training.nano.labels import group_words
from training.nano.sheet import Sheet, choose_text_colour, to_grey, wrap_text

STEMS, ENDS = (
    ("cormor", "thrift", "gosl", "pitch", "tamar", "vesper"),
    ("ant", "ing", "ee", "age", "on", "ine", "ad", "el"),
)
WORDS = [f"{stem}{end}" for stem in STEMS for end in ENDS]
DRAW_FUNCTIONS = {"poster": posters.draw_poster, "slide": slides.draw_slide}


@pytest.fixture(autouse=True)
def _default_font(monkeypatch):
    monkeypatch.setattr(synthetic_text, "list_fonts", lambda folder, held_out=False: ("",))


@pytest.fixture
def word_list(tmp_path):
    path = tmp_path / "words"
    path.write_text("\n".join([*WORDS, *(w.title() for w in WORDS), "house", "cats"]))
    return path


def ink_under(image: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """Compute the range of grey values in each box `(n,)`."""
    pixels = np.asarray(image.convert("L"), np.int16)
    parts = (pixels[max(t, 0) : b, max(x, 0) : r] for x, t, r, b in boxes.round().astype(int))
    return np.array([np.ptp(p) if p.size else 0 for p in parts])


def test_boxes_follow_a_scan(tmp_path):
    pdf = tmp_path / "one-1.pdf"
    write_pdf(pdf, TEXT)
    corpus.render_document((pdf, tmp_path))
    image, symbols, boxes = corpus.load_page(next(tmp_path.glob("*.npz")))
    for seed in range(12):
        page, moved = scan_effects.scan(image, boxes, random.Random(seed))
        again, _ = scan_effects.scan(image, boxes, random.Random(seed))
        assert page.size == image.size
        assert np.array_equal(np.asarray(page), np.asarray(again))
        # Words show more contrast than the faintest print and than grain alone.
        words = group_words(symbols, moved)
        assert np.median(ink_under(page, words.boxes)) > 60
    far, moved = scan_effects.rotate_page(image, boxes, 2.0, 255)
    assert np.abs(moved - boxes).max() > 5
    assert (ink_under(far, group_words(symbols, moved).boxes) > 60).all()


def test_faint_print_survives_black_and_white():
    """The threshold is between ink and background even if they are similar."""
    page = np.full((64, 64), 190, np.float32)
    page[20:40, 10:50] = 135
    for seed in range(8):
        shown = scan_effects.binarize(page, random.Random(seed))
        assert shown[25:35, 15:45].mean() < 60
        assert shown[50:, :].mean() > 200


def test_scanned_corpus_has_images_and_the_same_queries(tmp_path, monkeypatch):
    source = tmp_path / "clean"
    (source / "pdfs").mkdir(parents=True)
    write_pdf(source / "pdfs" / "report.pdf", TEXT)
    write_pdf(source / "pdfs" / "other.pdf", TEXT)
    query = {"id": "1", "text": "net revenue", "relevant": [["report.pdf", 0]]}
    (source / "queries.jsonl").write_text(json.dumps(query) + "\n")
    monkeypatch.setattr("sys.argv", ["scanned", str(source), str(tmp_path / "twin"), "--documents", "report"])
    scanned_corpus.main()
    twin = local_corpus(tmp_path / "twin")
    assert twin.names() == ["report.pdf#0"]
    ((_, image),) = twin.pages(200_000)
    ((_, clean),) = local_corpus(source, ["report"]).pages(200_000)
    assert abs(image.width / image.height - clean.width / clean.height) < 0.02
    assert np.asarray(image.convert("L")).std() > 8
    from pypdfium2 import PdfDocument

    assert PdfDocument(tmp_path / "twin" / "pdfs" / "report.pdf")[0].get_textpage().count_chars() == 0


def test_missing_word_list_is_reported(tmp_path):
    with pytest.raises(SystemExit, match=r"no such file\. Install wamerican or name one with --words"):
        text_generator.load_unseen_words(tmp_path / "missing", set())


@pytest.mark.parametrize("kind", DRAW_FUNCTIONS)
def test_questions_contain_printed_words(kind, word_list, tmp_path, monkeypatch):
    target = tmp_path / kind
    monkeypatch.setattr("sys.argv", [kind, "fonts", str(target), "--pages", "3", "--words", str(word_list)])
    {"poster": posters, "slide": slides}[kind].main()
    written = local_corpus(target)
    assert len(written.names()) == 3
    drawn = list(evaluation_set.generate_sheets(DRAW_FUNCTIONS[kind], tmp_path, word_list, 3, 20))
    texts = [q.text for q in written.queries]
    assert texts == [question for *_, questions in drawn for question in questions.values()]
    assert texts
    for image, symbols, boxes, questions in drawn:
        printed = set(group_words(symbols, boxes).texts)
        question_words = {w.strip("?,").lower() for q in questions.values() for w in q.split()}
        if questions:
            assert len(question_words & set(WORDS) & printed) >= 2
        assert question_words & set(WORDS) <= printed
        assert (ink_under(image, boxes) > 20).mean() > 0.97


def test_no_single_word_identifies_a_sheet_within_its_topic():
    """Sheets of a topic share words, and some of them are similar."""
    words = sorted(WORDS)
    topic = text_generator.Topic(random.Random(1), words, [w.title() for w in words])
    sheets = [text_generator.TopicTextGenerator(random.Random(seed), topic) for seed in range(30)]
    counts = [sum(noun in sheet.vocabulary for sheet in sheets) for noun in topic.nouns]
    assert np.median(counts) > 3
    ordered = [words.index(noun) for noun in topic.nouns]
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(ordered)) >= 5


def test_known_words_and_plurals_are_not_unseen_words(word_list):
    nouns, names = text_generator.load_unseen_words(word_list, {"house", "thrifton"})
    assert sorted(nouns) == sorted(w for w in WORDS if w != "thrifton")
    assert all(name.istitle() for name in names)


def test_text_is_reduced_in_size_until_it_fits():
    sheet = Sheet(200, 60, (255, 255, 255))
    end = sheet.draw_text((0, 0, 200, 60), "annual report of the northern region", "", 40, (0, 0, 0))
    assert end <= 60
    _, symbols, boxes = sheet.export_labels()
    assert symbols == "annualreportofthenorthernregion"
    assert boxes[:, 2].max() <= 201
    assert boxes[:, 3].max() <= 62
    sheet.draw_text((0, 0, 20, 10), "incomprehensibilities", "", 40, (0, 0, 0))
    assert len(sheet.symbols) == len(symbols)  # not drawn: does not fit
    assert wrap_text("wide words", synthetic_text.load_font("", 20), 10) is None


def test_text_colours_contrast_with_the_background():
    rng = random.Random(1)
    for back in range(0, 256, 15):
        assert abs(to_grey(choose_text_colour(back, rng)) - back) > 60


def test_false_matches_by_patch_type(tmp_path, word_list):
    model = anchorfold.load("nano")
    assert isinstance(model, Nano)
    sheet = Sheet(640, 320, (255, 255, 255))
    sheet.draw_text(
        (20, 20, 620, 300), "the quarterly report shows revenue growth of northern regions", "", 24, (0, 0, 0)
    )
    known = false_matches.embed_texts(model, model.vocabulary.words)
    rates = false_matches.measure_page(model, *sheet.export_labels(), known, random.Random(1))
    assert rates is not None
    every, background, graphics, text = rates
    assert max(background, graphics, text) <= every < 0.5
    assert (
        false_matches.measure_page(model, *Sheet(640, 320, (9, 9, 9)).export_labels(), known, random.Random(1)) is None
    )
    types = false_matches.classify_patches(np.pad(np.ones((16, 32), np.float32), ((0, 16), (0, 32))), np.array([3]))
    assert types.tolist() == [1, 1, 1, 3]


def test_perfect_reader_prefers_the_page_that_repeats_a_word(tmp_path):
    (tmp_path / "pdfs").mkdir()
    write_pdf(tmp_path / "pdfs" / "a.pdf", ["the revenue of a region"])
    write_pdf(tmp_path / "pdfs" / "b.pdf", ["revenue", "revenue and more revenue"])
    query = {"id": "1", "text": "revenue", "relevant": [["b.pdf", 0]]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(query) + "\n")
    model = anchorfold.load("nano")
    assert isinstance(model, Nano)
    results = perfect_reader.measure_ndcg(model, tmp_path)
    assert results["by count, minimum 0.8"] == pytest.approx(100)
    counts = perfect_reader.count_words(tmp_path, ["b.pdf#0", "a.pdf#0"])
    assert counts[0]["revenue"] == 3
    (tmp_path / evaluation_set.PRINTED_FILE).write_text(json.dumps({"a.jpg": ["net", "net"]}))
    assert perfect_reader.count_words(tmp_path, ["a.jpg#0"]) == [{"net": 2}]
    single, repeated = perfect_reader.compute_term_weights(Counter(one=1, many=9), 0.6, None).tolist()
    assert 0.6 < single < repeated < 1
    assert perfect_reader.compute_term_weights(Counter(one=1), 0.6, 3.0) < single


@pytest.mark.slow
def test_probe_measures_every_type_of_page(word_list, tmp_path, monkeypatch):
    """A probe of the shipped weights is one line of JSON, and several lines are plotted."""
    held_out = tmp_path / "pages" / "held_out"
    held_out.mkdir(parents=True)
    write_pdf(tmp_path / "one-1.pdf", TEXT)
    corpus.render_document((tmp_path / "one-1.pdf", held_out))
    (tmp_path / "vocabulary.tsv").write_text("\t1\n" + "\n".join(f"{w}\t1" for w in WORDS))
    monkeypatch.setattr(
        "sys.argv", ["slide", "fonts", str(tmp_path / "set"), "--pages", "3", "--words", str(word_list)]
    )
    slides.main()
    arguments = [
        tmp_path,
        "fonts",
        "--start",
        WEIGHTS,
        "--pages",
        1,
        "--words",
        word_list,
        "--corpus",
        f"{tmp_path}/set@2",
    ]
    monkeypatch.setattr("sys.argv", ["probe", *map(str, arguments), "--minimum-weight", "0.8"])
    probe.main()
    line = json.loads((tmp_path / probe.PROBES_FILE).read_text())
    assert set(line["words"]) == {"unseen ordinary fonts", "documents", "scans", "posters", "slides"}
    assert line["words"]["documents"] > 60
    assert line["false_matches"]["documents"] < 50
    assert len(line["corpora"]["set"]["ndcg"]) == len(line["corpora"]["set"]["score_retention"]) == 4
    assert line["corpora"]["set"]["score_retention"][0] == pytest.approx(100, abs=1e-4)
    later = line | {"hours": 2.0, "words": {"scans": 99.0}}
    with recorded_figures() as recorded:
        figures.draw_probes([json.dumps(later), json.dumps(line)], tmp_path / "probes.png")
    words, false, found = recorded["probes.png"].axes
    assert points(words)["scans"] == [(0, line["words"]["scans"]), (2, 99.0)]
    assert points(false)["slides"][1] == (2, line["false_matches"]["slides"])
    assert points(found)["set"][0] == (0, line["corpora"]["set"]["ndcg"][0])
    with recorded_figures() as recorded:
        figures.draw_probes([json.dumps(line | {"corpora": {}})], tmp_path / "pages.png")
    assert len(recorded["pages.png"].axes) == 2  # no empty panel where no corpus was measured


def test_probe_accepts_a_subset_of_a_corpus(tmp_path):
    (tmp_path / "pdfs").mkdir()
    for name in "abc":
        write_pdf(tmp_path / "pdfs" / f"{name}.pdf", TEXT)
    query = {"id": "1", "text": "net revenue", "relevant": [["a.pdf", 0], ["c.pdf", 0]]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(query) + "\n")
    assert probe.load_corpus_subset(str(tmp_path)).names() == ["a.pdf#0", "b.pdf#0", "c.pdf#0"]
    assert probe.load_corpus_subset(f"{tmp_path}@2").names() == ["a.pdf#0", "b.pdf#0"]
    assert probe.load_corpus_subset(f"{tmp_path}@a,c").names() == ["a.pdf#0", "c.pdf#0"]
