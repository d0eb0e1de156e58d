"""Short forms of the proofs in docs/research/training.md, on a tiny random Qwen2.5-VL."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback
from typer.testing import CliRunner

import anchorfold
from anchorfold.backbones.colqwen import ColQwen
from anchorfold.cli.app import app, load_commands
from anchorfold.errors import AnchorFoldError
from anchorfold.testing import tiny
from tests.cli.test_causal_warning import causal_warnings
from tests.drawn_figures import recorded_figures, shows_colours
from tests.training.colqwen25.one_step import one_step
from training.colqwen25.controls import controlled_ndcg
from training.colqwen25.curves import read_points
from training.colqwen25.pairs import corpus_rows, open_page, validation_of
from training.colqwen25.recipe import read_recipe
from training.colqwen25.run import train
from training.colqwen25.shapes import write_corpora
from training.colqwen25.validation import ndcg_at_5

load_commands()

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
    pages = [page.vectors for page in model.encode_documents([open_page(row["image"]) for row in rows])]
    return torch.cat(pages + model.encode_queries([row["query"] for row in rows]))


def run(*words):
    """The output of a command."""
    completed = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert completed.exit_code == 0, completed.output
    return completed.output


def one_result(folder):
    (path,) = folder.rglob("results.json")
    return json.loads(path.read_text())


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


def test_the_result_is_marked_as_bidirectional(trained, material):
    folder, curve, _ = trained
    model = anchorfold.load(folder, device="cpu")
    assert not model.is_causal
    assert anchorfold.load(material / "base", device="cpu").is_causal
    validation = validation_of(corpus_rows(material / "shapes" / "test", material / "rendered", 2_000_000))
    assert ndcg_at_5(model, validation, None, 8) == pytest.approx(curve[-1]["ndcg_at_5"])
    page = open_page(next(iter(validation.pages.values())))
    (folded,) = model.encode_documents([page], anchorfold.AnchorFold(cap=4))
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


def test_commands_accept_the_result_as_a_model(trained, material, tmp_path):
    folder, curve, _ = trained
    model = shutil.copytree(folder, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*", "pages"))
    corpus = material / "shapes" / "test"
    outputs = {}

    def commands():
        outputs["calibrate"] = run("calibrate", model, "--pairs", corpus, "--count", 24, "--force", "--save")
        run("eval", corpus, "--model", model, "--methods", "anchorfold", "--cap", 4, "-o", tmp_path / "results")
        run("index", corpus / "pdfs", "--model", model, "--cap", 4, "--no-text", "-o", tmp_path / "my.index")
        outputs["search"] = run("search", tmp_path / "my.index", *names, "--json")

    names = [json.loads(line)["text"] for line in (corpus / "queries.jsonl").read_text().splitlines()]
    assert causal_warnings(commands) == []  # its base is causal, and it is not
    assert f"wrote{model / 'anchorfold.json'}:" in "".join(outputs["calibrate"].split())

    settings = anchorfold.load(model, device="cpu").layer_settings
    assert settings.source == str(model / "anchorfold.json")
    results = one_result(tmp_path / "results")
    (state,) = (tmp_path / "results").rglob("state.json")
    layers = json.loads(state.read_text())["key"]["layers"]
    assert (layers["window"], layers["steps"]) == (list(settings.window), settings.steps)
    full, folded = (row["ndcg"] for row in results["rows"])
    assert full == pytest.approx(100 * curve[-1]["ndcg_at_5"], abs=2)  # vectors are rounded to float16 here
    assert folded > 30

    relevant = {line["text"]: {file for file, _ in line["relevant"]} for line in
                map(json.loads, (corpus / "queries.jsonl").read_text().splitlines())}  # fmt: skip
    answers = [json.loads(line) for line in outputs["search"].splitlines() if line.startswith("{")]
    first = {answer["query"]: Path(answer["results"][0]["document"]).name for answer in answers}
    assert sum(first[name] in relevant[name] for name in names) > len(names) / 3


def test_a_run_goes_on_from_adapters(trained, material, tmp_path):
    """Which have their base, and become one: with fresh adapters, and universal tokens if the recipe wants some."""
    folder, curve, _ = trained
    for name, more in {"plain": [], "agc": ["agc.tokens=4", "agc.cap=9"]}.items():
        second = train(tmp_path / name, recipe(material, f"model.base={folder}", "training.max_steps=3", *more))
        if name == "plain":
            assert second[0]["ndcg_at_5"] == pytest.approx(curve[-1]["ndcg_at_5"])
        model = anchorfold.load(tmp_path / name, device="cpu")
        apart = anchorfold.load(tmp_path / name, device="cpu", merge_adapters=False)
        assert model.layer_settings.universal == (4 if more else 0)
        assert not model.is_causal
        assert torch.allclose(states(model, material), states(apart, material), atol=1e-5)
        validation = validation_of(corpus_rows(material / "shapes" / "test", material / "rendered", 2_000_000))
        compressor = anchorfold.AGC(cap=9) if more else None
        assert ndcg_at_5(model, validation, compressor, 8) == pytest.approx(second[-1]["ndcg_at_5"])


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


@pytest.mark.parametrize("name", ["paper", "agc"])
def test_the_shipped_recipes_run(material, tmp_path, name):
    """As they are but for the base, the data, and what a small machine needs: bfloat16, checkpointing, their loss."""
    small = ["use_cpu=true", "max_steps=2", "per_device_train_batch_size=4", "dataloader_num_workers=0"]
    more = [f"training.{setting}" for setting in small]
    curve = train(tmp_path, read_recipe(name, [*changes(material)[:3], *more]))
    assert [point["step"] for point in curve if "ndcg_at_5" in point] == [0, 2]
    model = anchorfold.load(tmp_path, device="cpu", dtype=torch.bfloat16)
    assert model.layer_settings.universal == (128 if name == "agc" else 0)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float32}  # small steps would be lost in bfloat16
    assert any("trainable_tokens" in key for key in saved) == (name == "agc")


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

    def test_both_checkpoints_side_by_side(self, agc, trained, material, tmp_path):
        """Appendix C's comparison, by its command: AGC on the one, AnchorFold on the other, at one cap."""
        models = ("--model", trained[0], "--model", agc)
        run("eval", material / "shapes" / "test", "--cap", 2, "--methods", "anchorfold,agc", *models, "-o", tmp_path)
        run("report", tmp_path)
        report = (tmp_path / "report.md").read_text()
        assert "at most 2 vectors per page" in report
        number = r"([+-]?[\d.]+)"
        cells = re.search(rf"\| test +\| +{number} \| +{number} \| +{number} \|.*\| +{number} to {number} \|", report)
        assert cells
        assert float(cells[1]) == pytest.approx(100 * read_points(agc)[-1]["ndcg_at_5"], abs=2)
        results = [json.loads(path.read_text()) for path in tmp_path.rglob("results.json")]
        (plain,) = (data["rows"] for data in results if not data["universal"])
        assert [row["method"] for row in plain] == ["none", "anchorfold"]
        assert float(cells[2]) == pytest.approx(plain[1]["ndcg"], abs=0.05)
        assert float(cells[4]) <= float(cells[3]) <= float(cells[5])  # the difference, within its interval

    def test_pages_carry_the_tokens_and_queries_none(self, agc, material):
        model = anchorfold.load(agc, device="cpu")
        plain = anchorfold.load(material / "base", device="cpu")
        assert isinstance(model, ColQwen)
        assert isinstance(plain, ColQwen)
        assert model.layer_settings.universal == 8
        page = open_page(corpus_rows(material / "shapes" / "test", material / "rendered", 2_000_000)[0]["image"])
        ids = model.prepare_pages([page]).inputs["input_ids"][0].tolist()
        assert ids[:-8] == plain.prepare_pages([page]).inputs["input_ids"][0].tolist()
        assert ids[-8:] == list(range(len(plain.tokenizer), len(plain.tokenizer) + 8))
        assert torch.equal(
            model.prepare_queries(["a b"])[0]["input_ids"], plain.prepare_queries(["a b"])[0]["input_ids"]
        )
        (encoded,) = model.encode_documents([page], anchorfold.AGC(cap=2))
        assert (len(encoded), encoded.full) == (2, 9)

    def test_a_run_goes_on_with_the_tokens_of_another(self, agc, material, tmp_path):
        more = [f"model.base={agc}", "agc.tokens=8", "agc.cap=2", "training.max_steps=2"]
        second = train(tmp_path, recipe(material, *more))
        assert second[0]["ndcg_at_5"] == pytest.approx(read_points(agc)[-1]["ndcg_at_5"])
        assert torch.allclose(
            states(anchorfold.load(tmp_path, device="cpu"), material),
            states(anchorfold.load(tmp_path, device="cpu", merge_adapters=False), material),
            atol=1e-5,
        )

    def test_adapters_and_tokens_load_back(self, agc, material):
        merged = anchorfold.load(agc, device="cpu")
        apart = anchorfold.load(agc, device="cpu", merge_adapters=False)
        assert torch.allclose(states(merged, material), states(apart, material), atol=1e-5)
