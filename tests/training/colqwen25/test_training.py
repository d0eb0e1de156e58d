"""Short forms of the proofs in docs/training.md, on a tiny random Qwen2.5-VL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

import anchorfold
from anchorfold.backbones.colqwen import ColQwen
from anchorfold.errors import AnchorFoldError
from anchorfold.testing import tiny
from tests.drawn_figures import recorded_figures, shows_colours
from tests.training.colqwen25.one_step import one_step
from training.colqwen25.controls import controlled_ndcg
from training.colqwen25.curves import read_points
from training.colqwen25.pairs import corpus_rows, open_page, validation_of
from training.colqwen25.recipe import read_recipe
from training.colqwen25.run import train
from training.colqwen25.shapes import write_corpora
from training.colqwen25.validation import ndcg_at_5

ROOT = Path(__file__).parents[3]
SHORT = ["training.max_steps=80", "training.eval_steps=40"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Two threads wait for each other longer than a tiny model computes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Cut(TrainerCallback):
    """Ends a run after a step, as a power failure would."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise SystemExit("cut")


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A causal tiny checkpoint and pages with shapes."""
    folder = tmp_path_factory.mktemp("material")
    tiny.make("colqwen2.5", folder / "base")
    config = json.loads((folder / "base" / "config.json").read_text())
    config["text_config"]["is_causal"] = True
    (folder / "base" / "config.json").write_text(json.dumps(config))
    write_corpora(folder / "shapes", train=96, test=24, cells=3, shapes=6, shown=1)
    return folder


def changes(material, *more):
    return [
        f"model.base={material / 'base'}",
        f"data.train={material / 'shapes' / 'train'}",
        f"data.validation={material / 'shapes' / 'test'}",
        "loss.mask_known_answers=true",
        "training.per_device_train_batch_size=16",
        "training.warmup_steps=10",
        *more,
    ]


def recipe(material, *more):
    return read_recipe("shapes", changes(material, *more))


@pytest.fixture(scope="module")
def trained(material, tmp_path_factory):
    """A run of some seconds, with what it returned and drew."""
    folder = tmp_path_factory.mktemp("trained")
    with recorded_figures() as figures:
        curve = train(folder, recipe(material, *SHORT))
    return folder, curve, figures


def states(model, material):
    """Vectors of some unseen pages and queries."""
    rows = corpus_rows(material / "shapes" / "test", material / "rendered", 2_000_000)[:4]
    pages = [page.vectors for page in model.encode_pages([open_page(row["image"]) for row in rows])]
    return torch.cat(pages + model.encode_queries([row["query"] for row in rows]))


def test_loss_falls_and_unseen_pages_are_found(trained):
    folder, curve, figures = trained
    losses = [point["loss"] for point in curve if "loss" in point]
    ndcg = [point["ndcg_at_5"] for point in curve if "ndcg_at_5" in point]
    assert losses[-1] < 0.8 * losses[0]
    assert ndcg[0] < 0.3
    assert ndcg[-1] > ndcg[0] + 0.25
    assert read_points(folder) == curve
    above, below = (axes.get_lines()[0].get_xydata().tolist() for axes in figures["curves.png"].axes)
    assert above == [[point["step"], point["loss"]] for point in curve if "loss" in point]
    assert below == [[point["step"], point["ndcg_at_5"]] for point in curve if "ndcg_at_5" in point]
    assert shows_colours(folder / "curves.png", ["#444444", "#1B7837"])


def test_the_result_is_a_model_that_knows_it_is_bidirectional(trained, material):
    folder, curve, _ = trained
    model = anchorfold.load(folder, device="cpu")
    assert not model.is_causal
    assert anchorfold.load(material / "base", device="cpu").is_causal
    validation = validation_of(corpus_rows(material / "shapes" / "test", material / "rendered", 2_000_000))
    assert ndcg_at_5(model, validation, None, 8) == pytest.approx(curve[-1]["ndcg_at_5"])
    page = open_page(next(iter(validation.pages.values())))
    (folded,) = model.encode_pages([page], anchorfold.AnchorFold(cap=4))
    assert len(folded) == 4


def test_adapters_load_back_with_equal_embeddings(trained, material):
    folder, *_ = trained
    apart = anchorfold.load(folder, device="cpu", merge_adapters=False)
    last = max(folder.glob("checkpoint-*"), key=lambda f: int(f.name.rpartition("-")[2]))
    merged, checkpoint = anchorfold.load(folder, device="cpu"), anchorfold.load(last, device="cpu")
    expected = states(apart, material)
    assert torch.allclose(states(merged, material), expected, atol=1e-5)
    assert torch.allclose(states(checkpoint, material), expected, atol=1e-5)
    untrained = anchorfold.load(material / "base", device="cpu", bidirectional=True)
    assert not torch.allclose(states(untrained, material), expected, atol=0.1)


def test_a_cut_run_goes_on_to_the_same_curve(material, tmp_path):
    settings = recipe(
        material, "training.max_steps=8", "training.save_steps=2", "training.eval_steps=4", "training.logging_steps=2"
    )
    whole = train(tmp_path / "whole", settings)
    with pytest.raises(SystemExit, match="cut"):
        train(tmp_path / "cut", settings, [Cut(5)])
    (tmp_path / "cut" / "checkpoint-6").mkdir()  # cut while it was written
    resumed = train(tmp_path / "cut", settings)
    assert [point["step"] for point in resumed] == [0, 2, 4, 6, 8]
    for one, other in zip(whole, resumed, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    with pytest.raises(AnchorFoldError, match="another recipe"):
        train(tmp_path / "cut", recipe(material, "training.max_steps=9"))


@pytest.mark.parametrize("kind", ["shapes", "agc"])
def test_two_processes_give_the_gradients_of_one_with_twice_the_batch(material, tmp_path, kind):
    write_corpora(tmp_path / "eight", train=8, test=5, cells=3)  # all of them are one batch, in whatever order
    more = [f"data.train={tmp_path / 'eight' / 'train'}", "training.gradient_checkpointing=true"]
    more += ["agc.tokens=4", "agc.cap=3"] if kind == "agc" else []
    one_step(tmp_path / "one", tmp_path / "one.pt", "shapes",
             changes(material, *more, "training.per_device_train_batch_size=8"))  # fmt: skip
    more += ["training.ddp_backend=gloo"]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    module = one_step.__module__
    two = [
        tmp_path / "two",
        tmp_path / "two.pt",
        "shapes",
        *changes(material, *more, "training.per_device_train_batch_size=4"),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, module, *map(str, two)], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    alone, together = (torch.load(tmp_path / f"{n}.pt", weights_only=True) for n in ("one", "two"))
    assert alone.keys() == together.keys()
    scale = max(gradient.abs().max() for gradient in alone.values())
    assert scale > 0
    for name, gradient in alone.items():
        assert torch.allclose(gradient, together[name], rtol=1e-4, atol=1e-5 * scale), name
    first, second = read_points(tmp_path / "one"), read_points(tmp_path / "two")
    assert first[-1]["loss"] == pytest.approx(second[-1]["loss"], rel=1e-5)
    assert first[-1]["ndcg_at_5"] == pytest.approx(second[-1]["ndcg_at_5"], abs=0.05)


class TestAGC:
    @pytest.fixture(scope="class")
    def agc(self, material, tmp_path_factory):
        folder = tmp_path_factory.mktemp("agc")
        more = ["agc.tokens=8", "agc.cap=2", *SHORT]
        train(folder, recipe(material, *more))
        return folder

    def test_trained_tokens_beat_untrained_ones_and_random_anchors(self, agc, trained, material):
        validation = validation_of(corpus_rows(material / "shapes" / "test", material / "rendered", 2_000_000))
        best, *others = controlled_ndcg(agc, trained[0], validation, cap=2).values()
        assert best > 0.1 + max(others)

    def test_pages_carry_the_tokens_and_queries_none(self, agc, material):
        model = anchorfold.load(agc, device="cpu")
        plain = anchorfold.load(material / "base", device="cpu")
        assert isinstance(model, ColQwen)
        assert isinstance(plain, ColQwen)
        assert model.settings.universal == 8
        page = open_page(corpus_rows(material / "shapes" / "test", material / "rendered", 2_000_000)[0]["image"])
        ids = model.prepare_pages([page]).inputs["input_ids"][0].tolist()
        assert ids[:-8] == plain.prepare_pages([page]).inputs["input_ids"][0].tolist()
        assert ids[-8:] == list(range(len(plain.tokenizer), len(plain.tokenizer) + 8))
        assert torch.equal(
            model.prepare_queries(["a b"])[0]["input_ids"], plain.prepare_queries(["a b"])[0]["input_ids"]
        )
        (encoded,) = model.encode_pages([page], anchorfold.AGC(cap=2))
        assert (len(encoded), encoded.full) == (2, 9)

    def test_adapters_and_tokens_load_back(self, agc, material):
        merged = anchorfold.load(agc, device="cpu")
        apart = anchorfold.load(agc, device="cpu", merge_adapters=False)
        assert torch.allclose(states(merged, material), states(apart, material), atol=1e-5)
