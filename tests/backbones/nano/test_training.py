"""A smoke run of the curriculum, from a PDF to a model that loads: losses must fall."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import anchorfold
from anchorfold.attention.layer_settings import CALIBRATION_FILE, guess, write_settings
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.retriever import Nano
from tests.drawn_figures import points, recorded_figures
from training.nano import (
    candidates,
    checkpoint,
    corpus,
    crops,
    evaluate,
    examples,
    export,
    head,
    labels,
    letters,
    matching,
    pictures,
    reading,
    scanning,
    script,
    synth,
    tables,
    vocabulary,
)
from training.nano.average import RunningAverage
from training.nano.stages import load_start

TEXT = ["Annual report of the northern region", "Net revenue grew by 12.5 percent", "Employees 4821 offices 37"] * 4


def write_pdf(path, lines):
    """A one-page PDF with a text layer, by hand."""
    body = "BT /F1 14 Tf 18 TL 40 720 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 420 760] /Contents 4 0 R "
        "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        f"<< /Length {len(body)} >>\nstream\n{body}\nendstream",
    ]
    out, offsets = "%PDF-1.4\n", []
    for i, part in enumerate(parts, 1):
        offsets.append(len(out))
        out += f"{i} 0 obj\n{part}\nendobj\n"
    table = len(out)
    out += f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n" + "".join(f"{o:010} 00000 n \n" for o in offsets)
    path.write_text(out + f"trailer << /Size {len(parts) + 1} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    pages = folder / "pages" / "train"
    pages.mkdir(parents=True)
    for i in range(3):
        pdf = folder / f"package{i}-1.pdf"
        write_pdf(pdf, TEXT)
        assert corpus.render_document((pdf, pages)) == 1
        assert corpus.render_document((pdf, pages)) == 0  # done already
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["vocabulary", str(folder)])
        vocabulary.main()
    return folder


@pytest.fixture(autouse=True)
def _own_font(monkeypatch):
    monkeypatch.setattr(synth, "latin_fonts", lambda folder, held_out=False: ("",))


def test_pages_carry_their_words(data):
    image, symbols, boxes = corpus.load_page(next((data / "pages" / "train").glob("*.npz")))
    words = labels.group_words(symbols, boxes)
    assert words.texts[:6] == ["annual", "report", "of", "the", "northern", "region"]
    left, top, right, bottom = words.boxes[0].astype(int)
    ink = np.asarray(image)[top:bottom, left:right]
    assert ink.min() < 80
    assert (words.boxes[:, 2] <= image.width).all()


def test_pieces_of_a_page_keep_their_labels(data):
    """Wherever the window falls, on the page or beyond it, letters lie on ink."""
    page = next((data / "pages" / "train").glob("*.npz"))
    complete: list[np.ndarray] = []
    for seed, size in enumerate([(128, 256), (1400, 1100), (64, 1400)]):
        piece = crops.real_piece(page, random.Random(seed), *size)
        assert piece.pixels.shape == size
        words = labels.group_words(piece.symbols, piece.boxes)
        parts = [piece.pixels[t:b, x:r] for x, t, r, b in words.boxes.round().astype(int).clip(0)]
        complete += [part for part in parts if min(part.shape) >= 6]  # what the window cuts off may show no ink
    assert len(complete) > 20
    assert min(np.ptp(part) for part in complete) > 60


def test_ligatures_are_split():
    boxes = np.array([[0, 0, 5, 9], [5, 0, 13, 9], [5, 0, 13, 9], [13, 0, 18, 9]], np.float32)
    assert corpus.split_ligatures(boxes)[:, [0, 2]].tolist() == [[0, 5], [5, 9], [9, 13], [13, 18]]
    assert labels.group_words("afit", corpus.split_ligatures(boxes)).texts == ["afit"]


def test_patches_name_the_word_that_covers_them():
    words = labels.Words(["wide", "next"], np.array([[0, 2, 60, 16], [70, 2, 96, 16]], np.float32))
    pairs, shares = labels.patch_words(words, rows=2, columns=3)
    owner = {p: w for (p, w), s in zip(pairs.tolist(), shares.tolist(), strict=True) if s > 0.5}
    assert owner[0] == owner[1] == 0
    assert owner[2] == 1
    totals = np.zeros(6)
    np.add.at(totals, pairs[:, 0], shares)
    assert set(np.round(totals[np.unique(pairs[:, 0])], 5)) == {1.0}


def test_character_maps():
    boxes = np.array([[0, 0, 8, 16], [8, 0, 16, 16], [16, 0, 200, 300]], np.float32)
    symbols = labels.character_map("ab?", boxes, 32, 32)
    assert (symbols[0, :2] == labels.INDEX["a"]).all()
    assert (symbols[1, 2:4] == labels.INDEX["b"]).all()
    assert (symbols[3, 4:] == labels.IGNORE).all()  # too tall to be read at this scale
    assert (symbols[2:, :4] == labels.BLANK).all()


def test_invented_pages_are_reproducible_and_skew_follows():
    crops = [synth.make_crop(random.Random(3), ("",), ["revenue", "region"], 128, 256) for _ in range(2)]
    assert np.array_equal(np.asarray(crops[0][0]), np.asarray(crops[1][0]))
    image, symbols, boxes = crops[0]
    assert len(symbols) == len(boxes) > 0
    turned, moved = scanning.turn(image, boxes, 1.5, 255)
    assert turned.size == image.size
    assert 1 < np.abs(moved - boxes).max() < 16


def test_text_is_set_in_its_order():
    image, symbols, boxes = synth.set_text(random.Random(2), ("",), ["net", "revenue", "grew"], 128, 512)
    assert symbols.replace(",", "") == "netrevenuegrew"
    assert len(symbols) == len(boxes)
    ink = np.asarray(image) < 128
    assert ink.any()
    columns = np.flatnonzero(ink.any(0))
    assert boxes[:, 0].min() - 2 <= columns[0] <= columns[-1] <= boxes[:, 2].max() + 2


def test_grain_is_no_ink():
    noise = np.random.default_rng(0).normal(200, 12, (32, 64)).clip(0, 255)
    noise[16:, 32:48] = 60  # a bar in the last patch
    assert examples.inked(noise.astype(np.uint8)).tolist() == [False, False, False, True]


def test_ornament_is_paper_on_invented_pages_only(data):
    """A real page may show words in its pictures: only its blank patches are said to show none."""
    for real in (1.0, 0.0):
        source = examples.WordPieces(data, data, 128, 256, real, 1.0, seed=1)
        for seed in range(3):
            example = source.sample(random.Random(seed))
            shows = set(example.pairs[:, 0].tolist())
            assert not shows & set(example.paper.tolist())
            if not real:
                assert len(shows) + len(example.paper) == len(example.kept)


def test_altered_words_are_near_misses():
    rng = random.Random(4)
    for word in ("revenue", "the", "2024"):
        misread = {candidates.altered(word, rng) for _ in range(60)}
        assert len(misread) > 8
        assert all(0 < len(m) <= len(word) for m in misread)
        assert all(m.isdigit() == word.isdigit() for m in misread)
    assert {"reve", "enue"} <= {candidates.altered("revenue", rng) for _ in range(200)}


def test_invented_words_lie_among_known_ones():
    known = ["annual", "report", "northern", "region"] * 5
    mixed = script.with_blends(known, random.Random(1))
    assert [w for i, w in enumerate(mixed, 1) if i % (script.KNOWN + 1)] == known
    assert all(any(w.startswith(k[:3]) for k in known) for w in mixed)


def test_sheets_are_seen_as_large_as_whole_ones_are():
    """A window of a sheet shows letters that would not fit if the sheet were as small as the window."""
    tall = []
    for seed in range(12):
        piece = crops.sheet_piece(random.Random(seed), ["revenue", "region"], ("",), 192, 320)
        assert piece.pixels.shape == (192, 320)
        assert (piece.boxes[:, 2:] > 0).all()
        assert (piece.boxes[:, :2] < (320, 192)).all()
        tall += (piece.boxes[:, 3] - piece.boxes[:, 1]).tolist()
    assert max(tall) > 50


def test_letters_say_what_the_page_says(data):
    """Typed or printed, clean: the words of the page in their order, each letter's box on its ink, down to the foot."""
    words = ["annual", "report", "of", "the", "northern", "region"]
    for seed in range(6):
        image, symbols, boxes = letters.letter(random.Random(seed), ("",), ("",), words, 200, 420)
        said = "".join(c for c in symbols if c.isalnum())
        assert said
        assert said in "".join(words) * 60
        ink = [np.ptp(np.asarray(image)[max(int(t), 0) : int(b), int(x) : int(r) + 1]) for x, t, r, b in boxes]
        assert min(ink) > 60
        assert boxes[:, 3].max() > 120


def test_scanned_letters_keep_their_labels(data):
    page = next((data / "pages" / "train").glob("*.npz"))
    scanned = 0
    for seed in range(8):
        piece = crops.letter_piece(page, random.Random(seed), ("",), ("",), 192, 320)
        assert piece.pixels.shape == (192, 320)
        assert not piece.real
        text = labels.group_words(piece.symbols, piece.boxes).texts
        assert len({"report", "northern", "region", "revenue", "percent", "employees", "offices"} & set(text)) > 2
        level = np.median(piece.pixels)
        scanned += bool(level != 255)
        parts = [piece.pixels[t:b, x:r] for x, t, r, b in piece.boxes.round().astype(int).clip(0)]
        darkest = [int(level) - int(part.min()) for part in parts if min(part.shape) >= 5]
        assert np.median(darkest) > 40
    assert 2 <= scanned <= 8


def test_typewriters_are_known_by_their_names():
    fonts = ("/f/fonts-liberation--LiberationMono.ttf", "/f/fonts-lato--Lato.ttf", "/mono/fonts-go--Go.ttf")
    assert letters.typewriter_fonts(fonts) == fonts[:1]
    assert letters.typewriter_fonts(fonts[1:]) == fonts[1:]


def test_the_average_follows_the_weights():
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.data.fill_(0.0)
    average = RunningAverage(layer)
    for _ in range(50):
        layer.weight.data.fill_(1.0)
        average.update()
    assert 0.9 < average.state_dict()["weight"].mean() < 1
    again = RunningAverage(layer, average.state_dict(), average.steps)
    assert torch.equal(again.state_dict()["weight"], average.state_dict()["weight"])
    assert layer.weight.mean() == 1


def test_the_rate_rises_holds_and_rests():
    shares = [matching.share_of_rate(step, 1000) for step in range(1000)]
    assert shares[0] < 0.02
    assert shares[100:500] == [1.0] * 400
    assert shares[-1] < 0.01
    assert max(shares) == 1


def test_unreadable_cells_teach_nothing():
    """A small view of dense print may have no cell that can be named."""
    logits = torch.zeros(1, 2 * (labels.BLANK + 1), 2, 2, requires_grad=True)
    loss, _, _ = reading.name_loss(logits, torch.full((1, 2, 4), labels.IGNORE))
    assert loss == 0


def test_rare_large_and_repeated_words_are_asked_for():
    boxes = np.array([[0, 0, 32, 16], [32, 0, 64, 16], [64, 0, 96, 32], [0, 32, 9, 48]], np.float32)
    none = torch.zeros(0)
    example = examples.Example(none, none, ["the", "revenue", "revenue", "x"], none, none,
                               torch.from_numpy(examples.word_sizes(boxes)), [none], none, True)  # fmt: skip
    assert examples.word_values(example, {"the": 0.1, "revenue": 0.8}) == pytest.approx({"the": 0.1, "revenue": 6.4})


def test_reading_is_broken_down_by_what_and_how_large():
    reads = [
        evaluate.Read(0, "house", 1.0, 10.0, True),
        evaluate.Read(1, "house", 0.6, 13.0, False),
        evaluate.Read(2, "1984", 1.0, 13.0, True),
        evaluate.Read(3, "qzx", 1.0, 30.0, False),
    ]
    assert evaluate.breakdown(reads, {"house"}) == {
        "all": (0.5, 4), "one word": (pytest.approx(2 / 3), 3), "known words": (0.5, 2), "numbers": (1.0, 1),
        "other strings": (0.0, 1), "under 12 px": (1.0, 1), "12 to 16 px": (0.5, 2), "24 px and more": (0.0, 1),
    }  # fmt: skip


@pytest.mark.slow
def test_the_curriculum_learns_and_exports(data, tmp_path, monkeypatch):
    """Stage 1 and stage 2 for a few steps each, then a checkpoint that loads."""
    curve = reading.train(data, data, steps=24, batch=2, rate=3e-3, seed=1, every=6, real=0.3)
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    assert reading.train(data, data, steps=24, batch=2, rate=3e-3, seed=1, every=6) == curve  # resumed: nothing to do

    config = NanoConfig()
    words = [w for w, _ in zip(vocabulary.load_vocabulary(data)[0] * 99999, range(12), strict=False)]
    words += [f"word{i}" for i in range(config.vocab_size - len(words))]
    torch.manual_seed(0)
    state = tables.Tables(config).state_dict()
    checkpoint.save(data / "tables.pt", model=state, weights=torch.full((len(words),), 0.8), words="\n".join(words))
    small = matching.Stage(128, 256, 2, 0.3, 1e-3, frozen_stem=False, page_loss=0.3, retention=0.5, centrality=0.1,
                           blank_kept=0.5, pretence=1.0)  # fmt: skip
    monkeypatch.setitem(matching.STAGES, "words", small)
    monkeypatch.setattr(candidates, "RANDOM", 200)
    curve = matching.train(data, data, "words", steps=30, seed=1, every=10)
    assert curve[-1]["loss"] < curve[0]["loss"]

    export.export(data, "words", tmp_path / "nano")
    model = anchorfold.load(tmp_path / "nano")
    assert isinstance(model, Nano)
    page, *_ = (data / "pages" / "train").glob("*.npz")
    (encoded,) = model.encode_pages([corpus.load_page(page)[0]], anchorfold.AnchorFold(ratio=0.1))
    assert torch.isfinite(anchorfold.maxsim(model.encode_queries(["net revenue"]), [encoded])).all()

    export.export(data, None, tmp_path / "quiet", tmp_path / "nano", quietest=0.5)
    quiet = anchorfold.load(tmp_path / "quiet")
    assert quiet.model.quietest.item() == 0.5
    export.export(data, None, tmp_path / "again", tmp_path / "quiet", quietest=1.0)
    assert anchorfold.load(tmp_path / "again").fingerprint == model.fingerprint != quiet.fingerprint

    write_settings(tmp_path / "nano" / CALIBRATION_FILE, guess(config.num_hidden_layers))
    mixed = matching.MIXES | {"mixed": (("words", 2), ("pages", 1))}
    monkeypatch.setattr(matching, "MIXES", mixed)
    monkeypatch.setitem(matching.STAGES, "pages", replace(small, height=192))
    curve = matching.train(data, data, "mixed", steps=4, seed=1, every=2, start=tmp_path / "nano")
    resumed = matching.train(data, data, "mixed", steps=6, seed=1, every=2, start=tmp_path / "nano")
    assert resumed[:2] == curve
    assert resumed[-1]["step"] == 6
    assert resumed[-1]["seconds"] > curve[-1]["seconds"] > 0
    before = load_start(data, tmp_path / "nano")[0].eval()
    larger = load_start(data, tmp_path / "nano", eighth=True)[0].eval()
    pixels = torch.rand(1, 1, 128, 256)
    with torch.no_grad():  # what it sees at an eighth of the size counts for nothing yet
        assert torch.equal(before.stem(pixels), larger.stem(pixels))
    (data / "mixed.pt").unlink()
    matching.train(data, data, "mixed", steps=4, seed=1, every=2, start=tmp_path / "nano", eighth=True)
    export.export(data, "mixed", tmp_path / "large", tmp_path / "nano")
    large = anchorfold.load(tmp_path / "large").model.stem
    assert large.at_eighth.weight.abs().max() > 0
    assert not torch.equal(large.at_full.weight, before.stem.at_full.weight)
    monkeypatch.setitem(matching.STAGES, "pages", small)
    curve = head.train(data, data, tmp_path / "nano", pages=2, steps=12, every=4)
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert head.train(data, data, tmp_path / "nano", pages=2, steps=12, every=4) == curve  # resumed: nothing to do
    export.export(data, "head", tmp_path / "head", tmp_path / "nano")
    image = corpus.load_page(page)[0]
    before, after = (next(iter(m.page_states([image]))) for m in (model, anchorfold.load(tmp_path / "head")))
    assert not torch.allclose(before.embeddings, after.embeddings, atol=1e-3)

    monkeypatch.setitem(matching.STAGES, "agc", replace(small, real=1.0, universal=4, frozen_stem=True))
    curve = matching.train(data, data, "agc", steps=12, seed=1, every=4, start=tmp_path / "nano")
    assert curve[-1]["lost"] < curve[0]["lost"]
    export.export(data, "agc", tmp_path / "agc", tmp_path / "nano")
    trained = anchorfold.load(tmp_path / "agc")
    assert trained.settings.universal == 4
    (guided,) = trained.encode_pages([corpus.load_page(page)[0]], anchorfold.AGC(cap=9))
    assert len(guided) == 9

    reads = evaluate.read_page(model, *corpus.load_page(page), random.Random(1))
    assert reads
    assert all(0 < r.share <= 1 and r.height > 0 for r in reads)
    with recorded_figures() as figures:
        pictures.draw_curves(data, ["reading", "words"], tmp_path / "curves.png")
    (panel,) = figures["curves.png"].axes
    assert panel.get_ylabel() == "right on training pieces, %"
    states = [checkpoint.load(data / f"{name}.pt") or {} for name in ("reading", "words")]
    first, second = (state["curve"] for state in states)
    assert points(panel)["reading"] == [(point["step"], 100 * point["right"]) for point in first]
    assert points(panel)["words"] == [(first[-1]["step"] + point["step"], 100 * point["right"]) for point in second]
    tinted = np.asarray(pictures.colour_page(corpus.load_page(page)[0], reads, 48, 24)).astype(int)
    assert (abs(tinted[..., 0] - tinted[..., 2]) > 20).any()  # grey paper, coloured patches
