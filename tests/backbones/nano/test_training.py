"""Training material, labels, and a short run of all stages from a PDF to an exported model."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import anchorfold
from anchorfold.attention.layer_settings import CALIBRATION_FILE, default_settings, write_settings
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import NanoModel
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
    figures,
    head,
    labels,
    letters,
    losses,
    matching,
    reading,
    scan_effects,
    synthetic_text,
    tables,
    text_generator,
    vocabulary,
)
from training.nano.checkpoint import RunningAverage
from training.nano.crops import DEFAULT_SAMPLING
from training.nano.stages import READER, RUNS, STAGES, Run, Stage, load_start, reset_attention

TEXT = ["Annual report of the northern region", "Net revenue grew by 12.5 percent", "Employees 4821 offices 37"] * 4


def write_pdf(path, lines):
    """Write a one-page PDF with a text layer."""
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
        assert corpus.render_document((pdf, pages)) == 0  # skipped: rendered before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["vocabulary", str(folder)])
        vocabulary.main()
    return folder


@pytest.fixture(autouse=True)
def _default_font(monkeypatch):
    monkeypatch.setattr(synthetic_text, "list_fonts", lambda folder, held_out=False: ("",))


def test_stored_pages_have_word_labels(data):
    image, symbols, boxes = corpus.load_page(next((data / "pages" / "train").glob("*.npz")))
    words = labels.group_words(symbols, boxes)
    assert words.texts[:6] == ["annual", "report", "of", "the", "northern", "region"]
    left, top, right, bottom = words.boxes[0].astype(int)
    ink = np.asarray(image)[top:bottom, left:right]
    assert ink.min() < 80
    assert (words.boxes[:, 2] <= image.width).all()


def test_page_crops_keep_their_labels(data):
    """Boxes contain ink wherever the window is, including windows larger than the page."""
    page = next((data / "pages" / "train").glob("*.npz"))
    complete: list[np.ndarray] = []
    for seed, size in enumerate([(128, 256), (1400, 1100), (64, 1400)]):
        crop = crops.crop_page(page, random.Random(seed), *size)
        assert crop.pixels.shape == size
        words = labels.group_words(crop.symbols, crop.boxes)
        parts = [crop.pixels[t:b, x:r] for x, t, r, b in words.boxes.round().astype(int).clip(0)]
        complete += [part for part in parts if min(part.shape) >= 6]  # words at the border may show no ink
    assert len(complete) > 20
    assert min(np.ptp(part) for part in complete) > 60


def test_ligatures_are_split():
    boxes = np.array([[0, 0, 5, 9], [5, 0, 13, 9], [5, 0, 13, 9], [13, 0, 18, 9]], np.float32)
    assert corpus.split_ligatures(boxes)[:, [0, 2]].tolist() == [[0, 5], [5, 9], [9, 13], [13, 18]]
    assert labels.group_words("afit", corpus.split_ligatures(boxes)).texts == ["afit"]


def test_patches_are_labelled_with_the_words_that_cover_them():
    words = labels.Words(["wide", "next"], np.array([[0, 2, 60, 16], [70, 2, 96, 16]], np.float32))
    pairs, shares = labels.assign_words(words, rows=2, columns=3)
    owner = {p: w for (p, w), s in zip(pairs.tolist(), shares.tolist(), strict=True) if s > 0.5}
    assert owner[0] == owner[1] == 0
    assert owner[2] == 1
    totals = np.zeros(6)
    np.add.at(totals, pairs[:, 0], shares)
    assert set(np.round(totals[np.unique(pairs[:, 0])], 5)) == {1.0}


def test_character_maps():
    boxes = np.array([[0, 0, 8, 16], [8, 0, 16, 16], [16, 0, 200, 300]], np.float32)
    symbols = labels.map_characters("ab?", boxes, 32, 32)
    assert (symbols[0, :2] == labels.INDEX["a"]).all()
    assert (symbols[1, 2:4] == labels.INDEX["b"]).all()
    assert (symbols[3, 4:] == labels.IGNORE).all()  # too large for this scale
    assert (symbols[2:, :4] == labels.BLANK).all()


def test_synthetic_pages_are_reproducible_and_boxes_follow_rotation():
    crops = [synthetic_text.draw_page(random.Random(3), ("",), ["revenue", "region"], 128, 256) for _ in range(2)]
    assert np.array_equal(np.asarray(crops[0][0]), np.asarray(crops[1][0]))
    image, symbols, boxes = crops[0]
    assert len(symbols) == len(boxes) > 0
    rotated, moved = scan_effects.rotate_page(image, boxes, 1.5, 255)
    assert rotated.size == image.size
    assert 1 < np.abs(moved - boxes).max() < 16


def test_typeset_text_keeps_its_order():
    image, symbols, boxes = synthetic_text.typeset(random.Random(2), ("",), ["net", "revenue", "grew"], 128, 512)
    assert symbols.replace(",", "") == "netrevenuegrew"
    assert len(symbols) == len(boxes)
    ink = np.asarray(image) < 128
    assert ink.any()
    columns = np.flatnonzero(ink.any(0))
    assert boxes[:, 0].min() - 2 <= columns[0] <= columns[-1] <= boxes[:, 2].max() + 2


def test_grain_does_not_count_as_ink():
    noise = np.random.default_rng(0).normal(200, 12, (32, 64)).clip(0, 255)
    noise[16:, 32:48] = 60  # a bar in the last patch
    assert examples.has_ink(noise.astype(np.uint8)).tolist() == [False, False, False, True]


def test_graphics_count_as_background_on_synthetic_pages_only(data):
    """Images of real pages may contain words, so only blank patches are background there."""
    for real in (1.0, 0.0):
        source = examples.LabelledCrops(data, data, 128, 256, real, 1.0, seed=1)
        for seed in range(3):
            example = source.sample(random.Random(seed))
            shows = set(example.pairs[:, 0].tolist())
            assert not shows & set(example.background.tolist())
            if not real:
                assert len(shows) + len(example.background) == len(example.patches)


def test_misspelled_words_are_near_misses():
    rng = random.Random(4)
    for word in ("revenue", "the", "2024"):
        misspelled = {candidates.misspell(word, rng) for _ in range(60)}
        assert len(misspelled) > 8
        assert all(0 < len(m) <= len(word) for m in misspelled)
        assert all(m.isdigit() == word.isdigit() for m in misspelled)
    assert {"reve", "enue"} <= {candidates.misspell("revenue", rng) for _ in range(200)}


def test_invented_words_are_inserted_between_known_ones():
    known = ["annual", "report", "northern", "region"] * 5
    mixed = text_generator.insert_blends(known, random.Random(1))
    assert [w for i, w in enumerate(mixed, 1) if i % (text_generator.WORDS_PER_BLEND + 1)] == known
    assert all(any(w.startswith(k[:3]) for k in known) for w in mixed)


def test_sheet_crops_have_the_type_size_of_full_sheets():
    """Letters in a window may be larger than would fit if the sheet had the size of the window."""
    tall = []
    for seed in range(12):
        crop = crops.crop_sheet(random.Random(seed), ["revenue", "region"], ("",), 192, 320)
        assert crop.pixels.shape == (192, 320)
        assert (crop.boxes[:, 2:] > 0).all()
        assert (crop.boxes[:, :2] < (320, 192)).all()
        tall += (crop.boxes[:, 3] - crop.boxes[:, 1]).tolist()
    assert max(tall) > 50


def test_letters_contain_the_words_of_the_page(data):
    """Words keep their order, boxes contain ink, and the area is filled."""
    words = ["annual", "report", "of", "the", "northern", "region"]
    for seed in range(6):
        image, symbols, boxes = letters.draw_letter(random.Random(seed), ("",), ("",), words, 200, 420)
        text = "".join(c for c in symbols if c.isalnum())
        assert text
        assert text in "".join(words) * 60
        ink = [np.ptp(np.asarray(image)[max(int(t), 0) : int(b), int(x) : int(r) + 1]) for x, t, r, b in boxes]
        assert min(ink) > 60
        assert boxes[:, 3].max() > 120


def test_scanned_letters_keep_their_labels(data):
    page = next((data / "pages" / "train").glob("*.npz"))
    scanned = 0
    for seed in range(8):
        crop = crops.crop_letter(page, random.Random(seed), ("",), ("",), 192, 320)
        assert crop.pixels.shape == (192, 320)
        assert not crop.real
        text = labels.group_words(crop.symbols, crop.boxes).texts
        assert len({"report", "northern", "region", "revenue", "percent", "employees", "offices"} & set(text)) > 2
        level = np.median(crop.pixels)
        scanned += bool(level != 255)
        parts = [crop.pixels[t:b, x:r] for x, t, r, b in crop.boxes.round().astype(int).clip(0)]
        darkest = [int(level) - int(part.min()) for part in parts if min(part.shape) >= 5]
        assert np.median(darkest) > 40
    assert 2 <= scanned <= 8


def test_typewriter_fonts_are_selected_by_name():
    fonts = ("/f/fonts-liberation--LiberationMono.ttf", "/f/fonts-lato--Lato.ttf", "/mono/fonts-go--Go.ttf")
    assert letters.select_typewriter_fonts(fonts) == fonts[:1]
    assert letters.select_typewriter_fonts(fonts[1:]) == fonts[1:]


def test_running_average_follows_the_weights():
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.data.fill_(0.0)
    average = RunningAverage(layer)
    for _ in range(50):
        layer.weight.data.fill_(1.0)
        average.update()
    assert 0.9 < average.state_dict()["weight"].mean() < 1
    resumed = RunningAverage(layer, average.state_dict(), average.steps)
    assert torch.equal(resumed.state_dict()["weight"], average.state_dict()["weight"])
    assert layer.weight.mean() == 1


def test_learning_rate_warms_up_and_decays():
    shares = [matching.rate_factor(step, 1000) for step in range(1000)]
    assert shares[0] < 0.02
    assert shares[100:500] == [1.0] * 400
    assert shares[-1] < 0.01
    assert max(shares) == 1


def test_unreadable_cells_have_no_loss():
    logits = torch.zeros(1, 2 * (labels.BLANK + 1), 2, 2, requires_grad=True)
    loss, _, _ = reading.character_loss(logits, torch.full((1, 2, 4), labels.IGNORE))
    assert loss == 0


def test_query_weights_favour_rare_large_and_repeated_words():
    boxes = np.array([[0, 0, 32, 16], [32, 0, 64, 16], [64, 0, 96, 32], [0, 32, 9, 48]], np.float32)
    none = torch.zeros(0)
    example = examples.Example(none, none, ["the", "revenue", "revenue", "x"], none, none,
                               torch.from_numpy(examples.relative_sizes(boxes)), [none], none, True)  # fmt: skip
    assert examples.estimate_query_weights(example, {"the": 0.1, "revenue": 0.8}) == pytest.approx(
        {"the": 0.1, "revenue": 6.4}
    )


def test_inverse_document_frequency():
    assert tables.inverse_document_frequency(0, 1000) == tables.inverse_document_frequency(1, 1000) == pytest.approx(1)
    assert 0 < tables.inverse_document_frequency(1000, 1000) < tables.inverse_document_frequency(10, 1000) < 1


def test_accuracy_is_reported_by_kind_and_size_of_word():
    reads = [
        evaluate.PatchReading(0, "house", 1.0, 10.0, True),
        evaluate.PatchReading(1, "house", 0.6, 13.0, False),
        evaluate.PatchReading(2, "1984", 1.0, 13.0, True),
        evaluate.PatchReading(3, "qzx", 1.0, 30.0, False),
    ]
    assert evaluate.summarize(reads, {"house"}) == {
        "all": (0.5, 4), "one word": (pytest.approx(2 / 3), 3), "known words": (0.5, 2), "numbers": (1.0, 1),
        "other strings": (0.0, 1), "under 12 px": (1.0, 1), "12 to 16 px": (0.5, 2), "24 px and more": (0.0, 1),
    }  # fmt: skip


def test_neutral_runs_have_no_term_for_attention_or_folding():
    for name in ("neutral", "neutral-causal"):
        parts = [STAGES[part] for part, _ in RUNS[name].parts]
        assert not any(part.centrality_weight or part.page_weight or part.retention_weight for part in parts)
        assert all(part.masked_share > 0 for part in parts)
    assert RUNS["neutral-causal"].is_causal
    assert not RUNS["neutral"].is_causal


def test_degraded_run_differs_from_settled_in_samples_and_shares():
    parts = {name.removeprefix("degraded-"): STAGES[name] for name, _ in RUNS["degraded"].parts}
    assert RUNS["degraded"].parts == tuple((f"degraded-{name}", count) for name, count in RUNS["settled"].parts)
    for name, stage in parts.items():
        assert replace(stage, sampling=STAGES[name].sampling, squared_shares=True) == STAGES[name]
        assert stage.sampling.scans > STAGES[name].sampling.scans
        assert stage.sampling.sheets + stage.sampling.letters <= 1
    assert parts["crops"].squared_shares
    assert not parts["pages"].squared_shares


def test_squared_shares_prefer_the_larger_word():
    """Without squares the best vector is halfway between two words that cover 60 and 40 % of a patch."""
    words = torch.eye(2)
    pairs, shares = torch.tensor([[0, 0], [0, 1]]), torch.tensor([0.6, 0.4])
    angles = torch.linspace(0, torch.pi / 2, 181)
    vectors = torch.stack((angles.cos(), angles.sin()), 1)
    best = {}
    for squared in (True, False):
        values = torch.stack([losses.reading_loss(v[None], words, pairs, shares, squared)[0] for v in vectors])
        best[squared] = vectors[values.argmin()]
    assert best[True][0] - best[True][1] > best[False][0] - best[False][1] > 0


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_masked_patches_show_words(share, count):
    empty = torch.zeros(0)
    pairs = torch.tensor([[1, 0], [1, 1], [3, 1], [4, 2], [6, 2]])
    example = examples.Example(empty, torch.arange(9), ["a", "b", "c"], pairs, empty, empty, [], empty, True)
    mask = examples.select_masked(example, share, random.Random(0))
    assert mask.shape == (9,)
    assert mask.sum() == count
    assert not mask[[0, 2, 5, 7, 8]].any()


def test_sampling_scales_small_print(data):
    """All windows of a page are reduced with `small=1`, few with `small=0`."""
    (page, *_) = (data / "pages" / "train").glob("*.npz")
    heights = {}
    for small in (0.0, 1.0):
        rng, sampling = random.Random(3), replace(DEFAULT_SAMPLING, scans=0, small=small)
        cropped = [crops.crop_page(page, rng, 384, 640, sampling).boxes for _ in range(12)]
        heights[small] = np.median([np.median(boxes[:, 3] - boxes[:, 1]) for boxes in cropped if len(boxes)])
    assert heights[1.0] < 0.85 * heights[0.0]


def test_reset_attention_changes_queries_and_keys_of_the_chosen_layers():
    torch.manual_seed(0)
    model = NanoModel(NanoConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=3))
    for name, parameter in model.named_parameters():
        if "qkv.weight" in name:
            torch.nn.init.normal_(parameter, std=9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    reset_attention(model, (1,))
    after = model.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {"layers.1.self_attn.qkv.weight"}
    assert 0.15 < after["layers.1.self_attn.qkv.weight"][:64].std() < 0.2  # 32 ** -0.5: logits of unit variance
    assert torch.equal(after["layers.1.self_attn.qkv.weight"][64:], before["layers.1.self_attn.qkv.weight"][64:])


@pytest.mark.slow
def test_all_stages_train_and_export(data, tmp_path, monkeypatch):
    """Losses decrease in a few steps of each stage, runs resume, and exported models load."""
    curve = reading.train(data, data, steps=24, batch=2, rate=3e-3, seed=1, every=6, real_share=0.3)
    assert curve[-1]["loss"] < 0.8 * curve[0]["loss"]
    assert reading.train(data, data, steps=24, batch=2, rate=3e-3, seed=1, every=6) == curve  # complete

    config = NanoConfig()
    words = [w for w, _ in zip(vocabulary.load_vocabulary(data)[0] * 99999, range(12), strict=False)]
    words += [f"word{i}" for i in range(config.vocab_size - len(words))]
    torch.manual_seed(0)
    state = tables.Tables(config).state_dict()
    checkpoint.save(data / "tables.pt", model=state, weights=torch.full((len(words),), 0.8), words="\n".join(words))
    small = Stage(
        128, 256, 2, 0.3, 1e-3, 0.5, absent_weight=1.0, page_weight=0.3, retention_weight=0.5, centrality_weight=0.1
    )  # fmt: skip
    monkeypatch.setitem(matching.STAGES, "words", small)
    monkeypatch.setattr(candidates, "RANDOM", 200)
    curve = matching.train(data, data, "words", steps=30, seed=1, every=10)
    assert curve[-1]["loss"] < curve[0]["loss"]

    export.export(data, "words", tmp_path / "nano")
    model = anchorfold.load(tmp_path / "nano")
    assert isinstance(model, Nano)
    page, *_ = (data / "pages" / "train").glob("*.npz")
    (encoded,) = model.encode_documents([corpus.load_page(page)[0]], anchorfold.AnchorFold(ratio=0.1))
    assert torch.isfinite(anchorfold.maxsim(model.encode_queries(["net revenue"]), [encoded])).all()

    export.export(data, None, tmp_path / "weighted", tmp_path / "nano", minimum_weight=0.5)
    weighted = anchorfold.load(tmp_path / "weighted")
    assert weighted.model.minimum_weight.item() == 0.5
    export.export(data, None, tmp_path / "again", tmp_path / "weighted", minimum_weight=1.0)
    assert anchorfold.load(tmp_path / "again").fingerprint == model.fingerprint != weighted.fingerprint

    write_settings(tmp_path / "nano" / CALIBRATION_FILE, default_settings("nano", config.num_hidden_layers))
    monkeypatch.setitem(matching.RUNS, "mixed", Run((("words", 2), ("pages", 1))))
    monkeypatch.setitem(matching.STAGES, "pages", replace(small, height=192))
    curve = matching.train(data, data, "mixed", steps=4, seed=1, every=2, start=tmp_path / "nano")
    resumed = matching.train(data, data, "mixed", steps=6, seed=1, every=2, start=tmp_path / "nano")
    assert resumed[:2] == curve
    assert resumed[-1]["step"] == 6
    assert resumed[-1]["seconds"] > curve[-1]["seconds"] > 0
    before = load_start(data, tmp_path / "nano")[0].eval()
    extended = load_start(data, tmp_path / "nano", eighth_scale=True)[0].eval()
    pixels = torch.rand(1, 1, 128, 256)
    with torch.no_grad():  # new weights are zero
        assert torch.equal(before.stem(pixels), extended.stem(pixels))
    (data / "mixed.pt").unlink()
    matching.train(data, data, "mixed", steps=4, seed=1, every=2, start=tmp_path / "nano", eighth_scale=True)
    export.export(data, "mixed", tmp_path / "large", tmp_path / "nano")
    large = anchorfold.load(tmp_path / "large").model.stem
    assert large.at_eighth.weight.abs().max() > 0
    assert not torch.equal(large.at_full.weight, before.stem.at_full.weight)

    monkeypatch.setitem(
        matching.STAGES, "neutral-pages",
        replace(small, page_weight=0.0, retention_weight=0.0, centrality_weight=0.0, masked_share=0.3),
    )  # fmt: skip
    monkeypatch.setitem(matching.RUNS, "neutral-causal", replace(RUNS["neutral-causal"], parts=(("neutral-pages", 1),)))
    curve = matching.train(data, data, "neutral-causal", steps=4, seed=1, every=2, start=tmp_path / "nano")
    resumed = matching.train(data, data, "neutral-causal", steps=6, seed=1, every=2, start=tmp_path / "nano")
    assert resumed[:2] == curve
    assert not {"centrality", "selection", "repeats", "page", "retention"} & set(resumed[-1])
    assert {"masked", "masked_accuracy"} <= set(resumed[-1])
    export.export(data, "neutral-causal", tmp_path / "causal", tmp_path / "nano")
    assert anchorfold.load(tmp_path / "causal").is_causal
    export.export(data, None, tmp_path / "causal-copy", tmp_path / "causal")
    assert anchorfold.load(tmp_path / "causal-copy").is_causal

    monkeypatch.setitem(matching.STAGES, "pages", small)
    curve = head.train(data, data, tmp_path / "nano", pages=2, steps=12, every=4)
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert head.train(data, data, tmp_path / "nano", pages=2, steps=12, every=4) == curve  # complete
    export.export(data, "head", tmp_path / "head", tmp_path / "nano")
    image = corpus.load_page(page)[0]
    before, after = (next(iter(m.page_states([image]))) for m in (model, anchorfold.load(tmp_path / "head")))
    assert not torch.allclose(before.embeddings, after.embeddings, atol=1e-3)

    monkeypatch.setitem(matching.STAGES, "agc", replace(small, real_share=1.0, universal=4, frozen=READER))
    curve = matching.train(data, data, "agc", steps=12, seed=1, every=4, start=tmp_path / "nano")
    assert curve[-1]["retention"] < curve[0]["retention"]
    export.export(data, "agc", tmp_path / "agc", tmp_path / "nano")
    trained = anchorfold.load(tmp_path / "agc")
    assert trained.layer_settings.universal == 4
    (guided,) = trained.encode_documents([corpus.load_page(page)[0]], anchorfold.AGC(cap=9))
    assert len(guided) == 9

    reads = evaluate.read_page(model, *corpus.load_page(page), random.Random(1))
    assert reads
    assert all(0 < r.share <= 1 and r.height > 0 for r in reads)
    with recorded_figures() as recorded:
        figures.draw_curves(data, ["reading", "words"], tmp_path / "curves.png")
    (panel,) = recorded["curves.png"].axes
    assert panel.get_ylabel() == "accuracy on training crops, %"
    states = [checkpoint.load(data / f"{name}.pt") or {} for name in ("reading", "words")]
    first, second = (state["curve"] for state in states)
    assert points(panel)["reading"] == [(point["step"], 100 * point["accuracy"]) for point in first]
    assert points(panel)["words"] == [(first[-1]["step"] + point["step"], 100 * point["accuracy"]) for point in second]
    tinted = np.asarray(figures.colour_page(corpus.load_page(page)[0], reads, 48, 24)).astype(int)
    assert (abs(tinted[..., 0] - tinted[..., 2]) > 20).any()  # patches are tinted
