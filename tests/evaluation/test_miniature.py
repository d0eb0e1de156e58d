"""The whole paper in miniature: three backbones, its three suites of 18 data sets, every experiment, one report.

Checkpoints are tiny and random, data sets of mteb's own task class with a few pages each; the paths are those of the
real ones. The report's cells are compared with figures that are computed here from vectors, by other code.
"""

import json
import re
import shutil
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import anchorfold
from anchorfold.cli import ablate_command, bench_command, calibrate_command, eval_command, report_command  # noqa: F401
from anchorfold.cli.app import app
from anchorfold.compressors import title_of
from anchorfold.evaluation import benchmarks, efficiency, paper
from anchorfold.evaluation.benchmarks import BENCHMARKS, PAPER_SUITES, Task
from anchorfold.evaluation.methods import Method, paper_methods
from tests.number_reader import write_pdf

datasets = pytest.importorskip("datasets")
pytest.importorskip("mteb")
pytest.importorskip("matplotlib")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

pytestmark = pytest.mark.slow
KINDS, RATIOS, PAGES = ("colpali", "colqwen2.5", "nemotron"), (0.5, 0.2), 6
WORDS = ["net revenue", "table by region", "user report", "the page", "a b c", "image d e"]


def page_image(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (64, 64, 3), np.uint8))


class TinyTask(AbsTaskRetrieval):
    """Six pages of noise; four queries, the last of which two pages answer. `number` makes them differ."""

    number = 0

    def load_data(self, num_proc=None, **_):
        pages = {"id": [f"p{i}" for i in range(PAGES)], "image": images_of(self.number)}
        corpus = datasets.Dataset.from_dict(pages).cast_column("image", datasets.Image())
        asked = datasets.Dataset.from_dict(
            {"id": list(queries_of(self.number)), "text": list(queries_of(self.number).values())}
        )
        self.corpus, self.queries = {"test": corpus}, {"test": asked}
        self.relevant_docs = {"test": {q: dict.fromkeys(r, 1) for q, r in answers_of(self.number).items()}}
        self.data_loaded = True


@cache
def images_of(number):
    return [page_image(100 * number + i) for i in range(PAGES)]


def queries_of(number):
    return {f"q{i}": WORDS[(number + i) % len(WORDS)] for i in range(4)}


def answers_of(number):
    answers = {f"q{i}": [f"p{(i + number) % PAGES}"] for i in range(3)}
    return {**answers, "q3": ["p0", "p4"]}


def tiny_task(name, number):
    metadata = TaskMetadata(
        name=name, description="tiny", dataset={"path": "here", "revision": "1"}, type="DocumentUnderstanding",
        category="t2i", eval_splits=["test"], eval_langs=["eng-Latn"], main_score="ndcg_at_5",
        modalities=["text", "image"],
    )  # fmt: skip
    return type(name, (TinyTask,), {"metadata": metadata, "number": number, "__module__": __name__})()


NUMBERS = {task.name: i for i, task in enumerate(t for suite in PAPER_SUITES for t in BENCHMARKS[suite].values())}


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


class Miniature:
    """What was run: folders of checkpoints by kind, the report as tables of text cells."""

    held_out: str
    models: dict[str, str]
    trained: str
    to: Path
    output: str
    tables: dict[str, Any]


@pytest.fixture(scope="module")
def miniature(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("miniature")
    with pytest.MonkeyPatch.context() as patch:
        for suite in PAPER_SUITES:
            patch.setitem(BENCHMARKS, suite, {n: Task(t.name) for n, t in BENCHMARKS[suite].items()})
        patch.setattr(benchmarks, "load_task", lambda name: tiny_task(name, NUMBERS[name]))
        patch.setattr(efficiency, "run_apart", efficiency.run_job)
        miniature = Miniature()
        miniature.held_out = held_out_corpus(folder / "held-out")
        miniature.models = {kind: str(checkpoints[kind]) for kind in KINDS}
        miniature.trained = trained_twin(checkpoints["colqwen2.5"], folder / "agc")
        miniature.to = folder / "results"
        miniature.output = run(
            "eval", "paper", *(a for m in miniature.models.values() for a in ("--model", m)), "--calibration",
            miniature.held_out, "--ratios", ",".join(map(str, RATIOS)), "--to", miniature.to,
        )  # fmt: skip
        run("eval", "paper", "--cap", 128, "--methods", "anchorfold,agc", "--model", miniature.models["colqwen2.5"],
            "--model", miniature.trained, "--to", miniature.to)  # fmt: skip
        pairs = ("--pairs", miniature.held_out, "--count", 4)
        for what in ("variants", "windows", "depths"):
            run("ablate", what, "vidore-v2", "--model", miniature.models["colqwen2.5"], *pairs, "--to", miniature.to)
        for kind in KINDS:
            model = shutil.copytree(miniature.models[kind], folder / kind)
            run("calibrate", model, *pairs, "--results", miniature.to)
        run("bench", "efficiency", "--corpus", "vidore-v2", "--model", miniature.models["colqwen2.5"], "--ratio", 0.2,
            "--pages", 8, "--warm-up", 1, "--passes", 2, "--calibration", miniature.held_out,
            "--to", miniature.to)  # fmt: skip
        run("report", miniature.to)
    miniature.tables = read_tables((miniature.to / "report.md").read_text())
    return miniature


def held_out_corpus(folder):
    write_pdf(folder / "pdfs/a.pdf", [111, 222, 333, 444])
    lines = [{"id": f"q{i}", "text": WORDS[i], "relevant": [["a.pdf", i]]} for i in range(4)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return str(folder)


def trained_twin(source, folder):
    """The same checkpoint with universal tokens, as if it had been trained with them."""
    shutil.copytree(source, folder)
    model: Any = anchorfold.load(source, device="cpu")
    model.add_universal_tokens(2)
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


def read_tables(text):
    """Tables of a Markdown report by title, without marks of emphasis; those of one title in a list."""
    tables: dict[str, Any] = {}
    for title, body in re.findall(r"^\*\*([^|\n]+)\*\*\n\n((?:\|.*\n?)+)", text, re.MULTILINE):
        lines = [
            re.split(r"\s*\|\s*", line.strip().removeprefix("|").removesuffix("|").strip())
            for line in body.splitlines()
        ]
        cells = [[c.replace("**", "") for c in line] for line in (lines[0], *lines[2:])]
        tables.setdefault(title, []).append((cells[0], cells[1:]))
    return tables


# The same figures by other code: numpy, one page and query at a time.


@cache
def loaded(folder):
    return anchorfold.load(folder, device="cpu")


def plain_scores(queries, pages):
    return np.array([[np.sum(np.max(q @ p.T, axis=1)) for p in pages] for q in queries])


def plain_ndcg(scores, answers):
    values = []
    for row, relevant in zip(scores, answers, strict=True):
        ranked = [f"p{i}" for i in np.argsort(-row)[:5]]
        gain = sum(1 / np.log2(rank + 2) for rank, page in enumerate(ranked) if page in relevant)
        values.append(gain / sum(1 / np.log2(rank + 2) for rank in range(min(5, len(relevant)))))
    return 100 * float(np.mean(values))


@cache
def page_states(folder, number, signals):
    return list(loaded(folder).page_states(images_of(number), signals))


@cache
def plain_result(folder, task, method, held_out):
    """NDCG@5 of a method on a data set with a checkpoint."""
    model, number = loaded(folder), NUMBERS[task]
    compressor = method.make()
    if not compressor.ready:
        images = [Image.fromarray(a) for a in held_out_images(held_out)]
        compressor.calibrate_on(model, images)
    states = page_states(folder, number, tuple(compressor.signals(model.settings)))
    pages = [model.compress(state, compressor).vectors.half().float().numpy() for state in states]
    queries = [q.numpy() for q in model.encode_queries(list(queries_of(number).values()))]
    return plain_ndcg(plain_scores(queries, pages), list(answers_of(number).values()))


@cache
def held_out_images(folder):
    corpus = anchorfold.evaluation.corpus.local_corpus(folder)
    return [np.asarray(image) for _, image in corpus.pages(2_000_000)]


def plain_suite(miniature, folder, suite, method):
    return fmean(plain_result(folder, t.name, method, miniature.held_out) for t in BENCHMARKS[suite].values())


FULL = Method("none", 1.0)


def close(cell, value, digits=1):
    """Whether a cell's own figure (before the paper's in brackets) is the value, as rounded."""
    assert float(cell.split("[")[0].split("(")[0]) == pytest.approx(value, abs=0.5 * 10**-digits + 0.01), cell


def test_suite_tables(miniature):
    for suite in PAPER_SUITES:
        ((heads, lines),) = miniature.tables[suite]
        assert heads[:3] == ["method", "backbone", "full"]
        assert len(lines) == len(KINDS) * len(paper_methods())
        for line in lines:
            kind = next(k for k in KINDS if miniature.models[k] == line[1])
            name = next(n for n in paper_methods() if title_of(n) == line[0])
            full = plain_suite(miniature, line[1], suite, FULL)
            close(line[2], full)
            for i, ratio in enumerate(RATIOS):
                ndcg = plain_suite(miniature, line[1], suite, Method(name, ratio))
                cells = line[3 + 2 * i : 5 + 2 * i]
                close(cells[0], ndcg)
                close(cells[1], 100 * ndcg / full)
                reported = paper.reported(suite, kind, name, ratio)
                assert cells[0].endswith(f"[{reported:.1f} ({ndcg - reported:+.1f})]")


def test_data_set_tables(miniature):
    checked = 0
    for suite in PAPER_SUITES:
        for kind in KINDS:
            for heads, lines in miniature.tables[f"{suite} with {miniature.models[kind]}"]:
                names = heads[2::2]
                assert len(lines) == 1 + len(paper_methods()) * len(RATIOS)
                for line in lines:
                    name = next(n for n in ("none", *paper_methods()) if title_of(n) == line[0])
                    method = Method(name, float(line[1]))
                    for i, data_set in enumerate(names):
                        task = BENCHMARKS[suite][data_set].name
                        ndcg = plain_result(miniature.models[kind], task, method, miniature.held_out)
                        full = plain_result(miniature.models[kind], task, FULL, miniature.held_out)
                        cells = line[2 + 2 * i : 4 + 2 * i]
                        close(cells[0], ndcg)
                        close(cells[1], 100 * ndcg / full)
                        reported = paper.reported(suite, kind, name, float(line[1]), data_set)
                        assert f"[{reported:.1f} (" in cells[0]
                        checked += 1
    assert checked == 18 * 3 * 11


def test_headlines(miniature):
    for title, suites in (("ViDoRe v1 and v2", ("vidore-v1", "vidore-v2")), ("REAL-MM-RAG", ("real-mm-rag",))):
        ((_, lines),) = miniature.tables[f"{title}: mean NDCG@5 retention"]
        assert [line[0] for line in lines] == ["0.5", "0.2"]
        for line in lines:
            ratio = float(line[0])
            retained, margins = [], []
            for suite in suites:
                for kind in KINDS:
                    full = plain_suite(miniature, miniature.models[kind], suite, FULL)
                    kept = {
                        n: 100 * plain_suite(miniature, miniature.models[kind], suite, Method(n, ratio)) / full
                        for n in paper_methods()
                    }
                    ours = kept.pop("anchorfold")
                    retained.append(ours)
                    margins.append(ours - max(kept.values()))
            assert int(line[1]) == len(retained)
            close(line[2], fmean(retained))
            close(line[5], fmean(margins))
            assert line[3] == line[4]  # all of the paper's pairs are there
        if title.startswith("ViDoRe"):
            assert lines[1][3:5] == ["98.3", "98.3"]
            assert lines[1][6:8] == ["+2.7", "+2.7"]


def test_cap_against_agc(miniature):
    for suite in PAPER_SUITES:
        ((_, lines),) = miniature.tables[f"{suite}: at most 128 vectors a page"]
        assert [line[0] for line in lines] == [*BENCHMARKS[suite], "average"]
        agc, ours = [], []
        for line in lines[:-1]:
            task = BENCHMARKS[suite][line[0]].name
            agc.append(plain_result(miniature.trained, task, Method("agc", cap=128), ""))
            ours.append(plain_result(miniature.models["colqwen2.5"], task, Method("anchorfold", cap=128), ""))
            close(line[1], agc[-1])
            close(line[2], ours[-1])
            assert float(line[5]) == paper.reported_cap(suite, "colqwen2.5", "anchorfold", 128, line[0])
        close(lines[-1][1], fmean(agc))
        close(lines[-1][2], fmean(ours))
        assert float(lines[-1][4]) == paper.reported_cap(suite, "colqwen2.5", "agc", 128)


def test_ablations(miniature):
    model = loaded(miniature.models["colqwen2.5"])
    first: dict[str, Any] = {}
    for what in ("variants", "windows", "depths"):
        title = next(t for t in miniature.tables if t.startswith(f"{what} on vidore-v2"))
        ((heads, lines),) = miniature.tables[title]
        ndcg = heads.index("NDCG@5")
        stored = json.loads(next(p for p in miniature.to.rglob("ablation.json") if p.parent.name == what).read_text())
        for line, row in zip(lines, stored["rows"], strict=True):
            if what == "variants":
                method = Method(line[0], 0.2)
            else:
                steps = int(line[0].removeprefix("K=")) if what == "depths" else model.settings.steps
                method = Method(line[0], 0.2, window=tuple(row["window"]), steps=steps)
            value = plain_suite(miniature, miniature.models["colqwen2.5"], "vidore-v2", method)
            close(line[ndcg], value, 2)
            first.setdefault(what, value)
            close(line[ndcg + 1], value - first[what], 2)
        if what != "variants":
            assert heads[2:4] == ["on pairs, %", "paper's"]
            close(
                lines[0][2],
                pair_retention(
                    model, miniature.held_out, stored["rows"][0], stored["steps"] if what == "windows" else 2
                ),
                3,
            )


def pair_retention(model, held_out, row, steps):
    """Mean of compressed over full MaxSim of the held-out pairs."""
    values = []
    fold = anchorfold.AnchorFold(0.2, window=tuple(row["window"]), steps=steps)
    for array, text in zip(held_out_images(held_out), WORDS, strict=False):
        image = Image.fromarray(array)
        (query,), (full,), (small,) = (
            model.encode_queries([text]), model.encode_pages([image]), model.encode_pages([image], fold)
        )  # fmt: skip
        before, after = plain_scores([query.numpy()], [full.vectors.numpy(), small.vectors.numpy()])[0]
        values.append(100 * after / before)
    return fmean(values)


def test_calibration_and_efficiency(miniature):
    # Of four pairs those count whose full page scores above 0: with random weights not all do.
    wanted = re.compile(r"score retained at ratio 0\.2, [1-4] pairs")
    tables = [table for title, table in miniature.tables.items() if wanted.search(title)]
    assert len(tables) == len(KINDS)
    for ((heads, lines),) in tables:
        assert [line[0] for line in lines] == ["2", "3", "4", "6", "8", "10", "12"]
        assert sum(line[-1] == "chosen" for line in lines) == 1
        assert all(line[heads.index("paper")] for line in lines)
    title = next(t for t in miniature.tables if "8 pages of vidore-v2" in t)
    ((heads, lines),) = miniature.tables[title]
    rows = json.loads(next(miniature.to.rglob("efficiency.json")).read_text())["rows"]
    for line, row in zip(lines, rows, strict=True):
        assert line[heads.index("index / full")] == f"{row['total'] / rows[0]['total']:.3f}"
    assert lines[0][1] == "100.00"


def test_plan_figures_and_paper_command(miniature):
    assert f"together {18 * PAGES} pages" in miniature.output
    for name in (
        *(f"{s}-retention.png" for s in PAPER_SUITES),
        *(f"{s}-storage.png" for s in PAPER_SUITES),
        "calibration.png",
    ):
        assert (miniature.to / name).stat().st_size > 10_000
    assert list(miniature.to.glob("vidore-v2-*-latency.png"))
    html = (miniature.to / "report.html").read_text()
    assert all(
        f"<h2>{heading}" in html for heading in ("In short", "Suites", "Against trained", "Data sets", "Calibration")
    )
    folders = {p.relative_to(miniature.to).parts[0] for p in miniature.to.rglob("results.json")}
    assert len(folders) == 4  # one a checkpoint
