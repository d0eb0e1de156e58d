"""The measuring sets: scans, posters and slides whose labels and questions belong to what is printed."""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest
from PIL import Image

import anchorfold
from anchorfold.backbones.nano.query_side import WEIGHTS
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.evaluation.corpus import local_corpus
from tests.backbones.nano.test_training import TEXT, write_pdf
from tests.drawn_figures import points, recorded_figures
from training.nano import (
    corpus,
    false_matches,
    measuring_set,
    perfect_reader,
    pictures,
    posters,
    probe,
    scanned,
    scanning,
    script,
    slides,
    synth,
)
from training.nano.labels import group_words
from training.nano.sheet import Sheet, grey_of, readable_on, wrap

STEMS, ENDS = (
    ("cormor", "thrift", "gosl", "pitch", "tamar", "vesper"),
    ("ant", "ing", "ee", "age", "on", "ine", "ad", "el"),
)
WORDS = [f"{stem}{end}" for stem in STEMS for end in ENDS]
DRAWERS = {"poster": posters.draw_poster, "slide": slides.draw_slide}


@pytest.fixture(autouse=True)
def _own_font(monkeypatch):
    monkeypatch.setattr(synth, "latin_fonts", lambda folder, held_out=False: ("",))


@pytest.fixture
def word_list(tmp_path):
    path = tmp_path / "words"
    path.write_text("\n".join([*WORDS, *(w.title() for w in WORDS), "house", "cats"]))
    return path


def ink_under(image: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """`(n,)` the range of greys under each box."""
    pixels = np.asarray(image.convert("L"), np.int16)
    parts = (pixels[max(t, 0) : b, max(x, 0) : r] for x, t, r, b in boxes.round().astype(int))
    return np.array([np.ptp(p) if p.size else 0 for p in parts])


def test_boxes_follow_a_scan(tmp_path):
    pdf = tmp_path / "one-1.pdf"
    write_pdf(pdf, TEXT)
    corpus.render_document((pdf, tmp_path))
    image, symbols, boxes = corpus.load_page(next(tmp_path.glob("*.npz")))
    for seed in range(12):
        page, moved = scanning.scan(image, boxes, random.Random(seed))
        again, _ = scanning.scan(image, boxes, random.Random(seed))
        assert page.size == image.size
        assert np.array_equal(np.asarray(page), np.asarray(again))
        # Every word lies on ink: more than what the faintest print leaves, and than grain alone.
        words = group_words(symbols, moved)
        assert np.median(ink_under(page, words.boxes)) > 60
    far, moved = scanning.turn(image, boxes, 2.0, 255)
    assert np.abs(moved - boxes).max() > 5
    assert (ink_under(far, group_words(symbols, moved).boxes) > 60).all()


def test_faint_print_survives_black_and_white():
    """The level lies between ink and paper, however close they are."""
    page = np.full((64, 64), 190, np.float32)
    page[20:40, 10:50] = 135
    for seed in range(8):
        shown = scanning.bilevel(page, random.Random(seed))
        assert shown[25:35, 15:45].mean() < 60
        assert shown[50:, :].mean() > 200


def test_a_scanned_twin_has_pictures_and_the_same_queries(tmp_path, monkeypatch):
    source = tmp_path / "clean"
    (source / "pdfs").mkdir(parents=True)
    write_pdf(source / "pdfs" / "report.pdf", TEXT)
    write_pdf(source / "pdfs" / "other.pdf", TEXT)
    query = {"id": "1", "text": "net revenue", "relevant": [["report.pdf", 0]]}
    (source / "queries.jsonl").write_text(json.dumps(query) + "\n")
    monkeypatch.setattr("sys.argv", ["scanned", str(source), str(tmp_path / "twin"), "--documents", "report"])
    scanned.main()
    twin = local_corpus(tmp_path / "twin")
    assert twin.names() == ["report.pdf#0"]
    ((_, image),) = twin.pages(200_000)
    ((_, clean),) = local_corpus(source, ["report"]).pages(200_000)
    assert abs(image.width / image.height - clean.width / clean.height) < 0.02
    assert np.asarray(image.convert("L")).std() > 8
    from pypdfium2 import PdfDocument

    assert PdfDocument(tmp_path / "twin" / "pdfs" / "report.pdf")[0].get_textpage().count_chars() == 0


@pytest.mark.parametrize("kind", DRAWERS)
def test_questions_ask_for_what_is_printed(kind, word_list, tmp_path, monkeypatch):
    target = tmp_path / kind
    monkeypatch.setattr("sys.argv", [kind, "fonts", str(target), "--pages", "3", "--words", str(word_list)])
    {"poster": posters, "slide": slides}[kind].main()
    written = local_corpus(target)
    assert len(written.names()) == 3
    drawn = list(measuring_set.sheets(DRAWERS[kind], tmp_path, word_list, 3, 20))
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


def test_no_single_word_tells_a_sheet_from_its_topic():
    """Sheets of a topic share their words, some of which are alike: a half-read word goes wrong."""
    words = sorted(WORDS)
    topic = script.Topic(random.Random(1), words, [w.title() for w in words])
    sheets = [script.TopicScript(random.Random(seed), topic) for seed in range(30)]
    often = [sum(noun in sheet.vocabulary for sheet in sheets) for noun in topic.nouns]
    assert np.median(often) > 3
    ordered = [words.index(noun) for noun in topic.nouns]
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(ordered)) >= 5


def test_unseen_words_are_not_those_it_knows(word_list):
    nouns, names = script.unseen_words(word_list, {"house", "thrifton"})
    assert sorted(nouns) == sorted(w for w in WORDS if w != "thrifton")  # plurals and known words are left out
    assert all(name.istitle() for name in names)


def test_text_shrinks_until_it_fits():
    sheet = Sheet(200, 60, (255, 255, 255))
    end = sheet.write((0, 0, 200, 60), "annual report of the northern region", "", 40, (0, 0, 0))
    assert end <= 60
    _, symbols, boxes = sheet.labelled()
    assert symbols == "annualreportofthenorthernregion"
    assert boxes[:, 2].max() <= 201
    assert boxes[:, 3].max() <= 62
    sheet.write((0, 0, 20, 10), "incomprehensibilities", "", 40, (0, 0, 0))
    assert len(sheet.symbols) == len(symbols)  # what cannot fit is not printed
    assert wrap("wide words", synth.load_font("", 20), 10) is None


def test_letters_can_be_told_from_their_background():
    rng = random.Random(1)
    for back in range(0, 256, 15):
        assert abs(grey_of(readable_on(back, rng)) - back) > 60


def test_false_matches_count_wins_of_absent_words(tmp_path, word_list):
    """A sheet that prints its words large is matched by them, and paper matches absent words less than text does."""
    model = anchorfold.load("nano")
    assert isinstance(model, Nano)
    sheet = Sheet(640, 320, (255, 255, 255))
    sheet.write((20, 20, 620, 300), "the quarterly report shows revenue growth of northern regions", "", 24, (0, 0, 0))
    known = false_matches.vectors_of(model, model.words.words)
    rates = false_matches.page_rates(model, *sheet.labelled(), known, random.Random(1))
    assert rates is not None
    every, paper, ornament, text = rates
    assert max(paper, ornament, text) <= every < 0.5
    assert false_matches.page_rates(model, *Sheet(640, 320, (9, 9, 9)).labelled(), known, random.Random(1)) is None
    sorts = false_matches.sorts_of_patches(np.pad(np.ones((16, 32), np.float32), ((0, 16), (0, 32))), np.array([3]))
    assert sorts.tolist() == [1, 1, 1, 3]


def test_a_perfect_reader_prefers_the_page_that_repeats_a_word(tmp_path):
    """One mention each: the pages tie if all words speak alike, and the one that is about it wins by count."""
    (tmp_path / "pdfs").mkdir()
    write_pdf(tmp_path / "pdfs" / "a.pdf", ["the revenue of a region"])
    write_pdf(tmp_path / "pdfs" / "b.pdf", ["revenue", "revenue and more revenue"])
    query = {"id": "1", "text": "revenue", "relevant": [["b.pdf", 0]]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(query) + "\n")
    model = anchorfold.load("nano")
    assert isinstance(model, Nano)
    results = perfect_reader.ndcg(model, tmp_path)
    assert results["by count, floor 0.8"] == pytest.approx(100)
    counts = perfect_reader.page_words(tmp_path, ["b.pdf#0", "a.pdf#0"])
    assert counts[0]["revenue"] == 3
    (tmp_path / measuring_set.PRINTED_FILE).write_text(json.dumps({"a.jpg": ["net", "net"]}))
    assert perfect_reader.page_words(tmp_path, ["a.jpg#0"]) == [{"net": 2}]
    alone, often = perfect_reader.loudness(Counter(one=1, many=9), 0.6, None).tolist()
    assert 0.6 < alone < often < 1
    assert perfect_reader.loudness(Counter(one=1), 0.6, 3.0) < alone  # a long page says each word more quietly


@pytest.mark.slow
def test_a_probe_measures_every_kind_of_page(word_list, tmp_path, monkeypatch):
    """From the shipped weights to a line of figures, and from two lines to a picture."""
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
    monkeypatch.setattr("sys.argv", ["probe", *map(str, arguments), "--quietest", "0.8"])
    probe.main()
    line = json.loads((tmp_path / probe.PROBES_FILE).read_text())
    assert set(line["words"]) == {"unseen ordinary fonts", "documents", "scans", "posters", "slides"}
    assert line["words"]["documents"] > 60
    assert line["false"]["documents"] < 50
    assert len(line["corpora"]["set"]["ndcg"]) == len(line["corpora"]["set"]["kept"]) == 4
    assert line["corpora"]["set"]["kept"][0] == pytest.approx(100, abs=1e-4)
    later = line | {"hours": 2.0, "words": {"scans": 99.0}}
    with recorded_figures() as figures:
        pictures.draw_probes([json.dumps(later), json.dumps(line)], tmp_path / "probes.png")
    words, false, found = figures["probes.png"].axes
    assert points(words)["scans"] == [(0, line["words"]["scans"]), (2, 99.0)]
    assert points(false)["slides"][1] == (2, line["false"]["slides"])
    assert points(found)["set"][0] == (0, line["corpora"]["set"]["ndcg"][0])
    with recorded_figures() as figures:
        pictures.draw_probes([json.dumps(line | {"corpora": {}})], tmp_path / "pages.png")
    assert len(figures["pages.png"].axes) == 2  # no empty panel where no corpus was measured


def test_a_probe_takes_some_files_of_a_corpus(tmp_path):
    (tmp_path / "pdfs").mkdir()
    for name in "abc":
        write_pdf(tmp_path / "pdfs" / f"{name}.pdf", TEXT)
    query = {"id": "1", "text": "net revenue", "relevant": [["a.pdf", 0], ["c.pdf", 0]]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(query) + "\n")
    assert probe.chosen_corpus(str(tmp_path)).names() == ["a.pdf#0", "b.pdf#0", "c.pdf#0"]
    assert probe.chosen_corpus(f"{tmp_path}@2").names() == ["a.pdf#0", "b.pdf#0"]
    assert probe.chosen_corpus(f"{tmp_path}@a,c").names() == ["a.pdf#0", "c.pdf#0"]
