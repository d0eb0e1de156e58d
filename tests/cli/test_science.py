"""`anchorfold eval` and `anchorfold calibrate`, in this process, on a tiny checkpoint."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from anchorfold.attention.layer_settings import PAPER, LayerSettings
from anchorfold.cli.app import app, load_commands
from anchorfold.compressors import compressor_title
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation import efficiency
from anchorfold.evaluation.calibration import USEFUL_GAIN
from anchorfold.evaluation.figures.style import method_colour
from anchorfold.evaluation.layer_choice import choose_layers
from tests.drawn_figures import points, recorded_figures, shows_colours
from tests.number_reader import write_pdf

load_commands()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_pdf(folder / "pdfs/a.pdf", list(range(0, 900, 100)))
    lines = [{"id": f"q{i}", "text": f"words number {i}", "relevant": [["a.pdf", i]]} for i in range(9)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def one_file(folder, name):
    (path,) = folder.rglob(name)
    return path


def test_eval_prints_a_plan_and_one_line_per_method(corpus, checkpoints, tmp_path):
    arguments = ("eval", corpus, "--model", checkpoints["colpali"], "--ratios", "0.5,0.25", "--caps", "3",
                 "--calibration", corpus, "-o", tmp_path)  # fmt: skip
    output = run(*arguments)
    assert "9 pages x 9 queries x 22 methods" in output
    assert output.count("semantic-clustering") == 6
    assert output.count("semantic-clustering-raw") == 3
    assert output.count("docpruner") == 2
    assert "calibrated on the evaluated pages" not in output
    assert "paper" not in output
    results = json.loads(one_file(tmp_path, "results.json").read_text())
    assert results["calibrated_on"] == str(corpus)
    assert len(results["rows"]) == 1 + 6 * 3 + 2 + 1
    assert len(results["queries"]["sap@0.5"]["ndcg"]) == 9
    assert not list(tmp_path.rglob("*.vectors"))
    assert run(*arguments).splitlines()[:4] == output.splitlines()[:4]


def test_eval_warns_if_it_calibrates_on_the_evaluated_pages(corpus, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr("anchorfold.evaluation.held_out_pages.require_training_set", unreachable)
    output = run("eval", corpus, "--model", checkpoints["colpali"], "--methods", "docpruner", "--ratios", "0.5",
                 "-o", tmp_path)  # fmt: skip
    assert "thresholds are calibrated on the evaluated pages" in " ".join(output.split())
    run("report", tmp_path)
    assert "calibrated on the evaluated pages" in (tmp_path / "report.md").read_text()


def unreachable():
    raise AnchorFoldError("no hub")


def test_methods_on_two_checkpoints(corpus, checkpoints, tmp_path, monkeypatch):
    trained = shutil.copytree(checkpoints["colpali"], tmp_path / "agc")
    settings = {"window": [3, 4], "sap_window": [3, 4], "layers": 6, "steps": 6, "universal": 2}
    (trained / "anchorfold.json").write_text(json.dumps(settings))
    weights = load_file(trained / "model.safetensors")  # another training, so another fingerprint
    save_file({k: v + 0.01 for k, v in weights.items()}, trained / "model.safetensors", {"format": "pt"})
    arguments = ("eval", corpus, "--cap", "3", "--methods", "anchorfold,agc", "-o", tmp_path / "results")
    with pytest.raises(AnchorFoldError, match="universal tokens"):
        run(*arguments, "--model", checkpoints["colpali"])
    output = run(*arguments, "--model", checkpoints["colpali"], "--model", trained)
    assert "does not support agc@cap3" in " ".join(output.split())
    run("report", tmp_path / "results")
    text = (tmp_path / "results" / "report.md").read_text()
    assert "at most 3 vectors per page" in text
    plain, other = (json.loads(p.read_text()) for p in sorted((tmp_path / "results").rglob("results.json"),
                    key=lambda p: json.loads(p.read_text())["universal"]))  # fmt: skip
    ours = next(r["ndcg"] for r in plain["rows"] if r["method"] == "anchorfold")
    agc = next(r["ndcg"] for r in other["rows"] if r["method"] == "agc")
    assert re.search(rf"\| +{agc:.1f} \| +{ours:.1f} \| +{re.escape(f'{ours - agc:+.1f}')} \|", text)


def test_calibrate_save_is_used_by_load(corpus, checkpoints, tmp_path):
    import anchorfold

    model = shutil.copytree(checkpoints["colpali"], tmp_path / "model")
    figure = tmp_path / "panels.png"
    with recorded_figures() as figures:
        output = run(
            "calibrate", model, "--pairs", corpus, "--count", "6", "--compare", "--ratios", "0.25", "--figure", figure,
            "--results", tmp_path / "results", "--save", "--force",
        )  # fmt: skip
    assert "chosen" in output
    assert "retains the most score at ratio 0.25" in output
    pattern = (
        r"(whether AnchorFold suits|AnchorFold suits|does not suit) this backbone: ([+-][\d.]+) \+- ([\d.]+) points"
    )
    verdict, gain, error = re.search(pattern, " ".join(output.split())).groups()
    assert ("does not" in verdict) == (float(gain) + 2 * float(error) < USEFUL_GAIN)
    assert (verdict == "AnchorFold suits") == (float(gain) > 2 * float(error) and "does not" not in verdict)
    run("report", tmp_path / "results")
    assert "of " + str(corpus) in (tmp_path / "results" / "report.md").read_text()
    settings = anchorfold.load(model).layer_settings
    assert settings.source.endswith("anchorfold.json")
    depths, layers = figures["panels.png"].axes
    assert [tick.get_text() for tick in depths.get_xticklabels()] == ["2", "3", "4", "6", "8", "10", "12"]
    assert {len(points(depths)[f"chosen: K = {settings.steps}"]), len(points(depths))} == {1, 2}
    profiles = points(layers)
    assert {label: len(line) for label, line in profiles.items()} == {
        f"AnchorFold, K = {settings.steps}": settings.layers, "SAP": settings.layers
    }  # fmt: skip
    assert shows_colours(figure, [method_colour("anchorfold"), method_colour("sap")])


def test_calibrate_without_save_writes_no_file(corpus, checkpoints, tmp_path):
    model = shutil.copytree(checkpoints["colpali"], tmp_path / "model")
    arguments = ("calibrate", model, "--pairs", corpus, "--force")
    before = sorted(tmp_path.rglob("*"))
    output = " ".join(run(*arguments).split())
    assert "The settings are not saved: --save writes" in output
    assert sorted(tmp_path.rglob("*")) == before
    run(*arguments, "-o", tmp_path / "mine.json")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "mine.json"])


@pytest.mark.parametrize("count", [(), ("--count", "99")])
def test_calibrate_requires_a_hundred_pairs(corpus, tmp_path, count):
    pairs = "owner/pairs" if count else corpus
    with pytest.raises(AnchorFoldError, match=r"at least 100 pairs, .* gives 9+: .*--force"):
        run("calibrate", tmp_path, "--pairs", pairs, "--save", *count)


def test_the_source_of_layer_settings_is_printed(corpus, checkpoints, tmp_path):
    model = shutil.copytree(checkpoints["colpali"], tmp_path / "model")
    run("calibrate", model, "--pairs", corpus, "--force", "--save")
    source = f"(calibration file {model / 'anchorfold.json'})"
    output = run("eval", corpus, "--model", model, "--methods", "anchorfold", "--ratios", "0.5", "-o", tmp_path / "r")
    assert source in output
    run("report", tmp_path / "r")
    assert source in (tmp_path / "r" / "report.md").read_text()
    index = ("-o", tmp_path / "my.index", "--no-text", "--model", model)
    assert source in run("index", corpus / "pdfs", *index)
    assert source in run("info", tmp_path / "my.index")
    stored = json.loads(run("info", tmp_path / "my.index", "--json"))["layer_settings"]
    assert stored["source"] == str(model / "anchorfold.json")


def test_report_draws_what_was_measured(corpus, checkpoints, tmp_path):
    run("eval", corpus, "--model", checkpoints["colpali"], "--ratios", "0.5,0.25", "--caps", "1", "--calibration",
        corpus, "-o", tmp_path)  # fmt: skip
    results = json.loads(one_file(tmp_path, "results.json").read_text())
    parts = ("encoding", "encoding_sd", "capture", "capture_sd", "compression", "compression_sd", "p95", "megabytes")
    latency = {**dict.fromkeys(parts, 1.0), "vectors": 64, "realised": 50.0}
    timed = [{"method": m, "total": t, "total_sd": 0.1, **latency} for m, t in (("none@1", 90), ("anchorfold@0.5", 99))]
    header = {k: results[k] for k in ("model", "family", "fingerprint", "corpus")}
    (tmp_path / "efficiency.json").write_text(json.dumps(
        {**header, "device": "cpu", "dtype": "torch.float32", "pages": 4, "passes": 3, "calibrated_on": "",
         "ratio": 0.5, "rows": timed}
    ))  # fmt: skip
    with recorded_figures() as figures:
        run("report", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<tr") == (1 + 1) + (1 + 2) + (1 + 1 + 6 * 3 + 2) + (
        1 + 5 * 3 + 2
    )  # layers; latency; methods; ours against others
    notes = (tmp_path / "report.md").read_text()
    assert re.search(r"^\| \*\*anchorfold\*\* +\| +\*\*0\.25\*\* \|", notes, re.MULTILINE)
    assert re.search(r"^\| sap +\| +0\.25 \| +[+-]\d", notes, re.MULTILINE)
    name = results["corpus"]
    retention, storage = f"{name}-retention.png", f"{name}-storage.png"
    costs = f"{name}-{results['fingerprint'][:8]}-latency.png"
    assert set(figures) == {retention, storage, costs}
    assert all(picture in page for picture in figures)
    lines: dict[str, list] = {}
    for row in sorted(results["rows"], key=lambda row: -(row["ratio"] or 0)):
        if row["ratio"] is not None and row["method"] != "none":
            lines.setdefault(row["method"], []).append(row)
    assert len(lines) == 7
    for panel, label, key in zip(
        figures[retention].axes, ("NDCG@5", "score"), ("ndcg_retention", "score_retention"), strict=True
    ):
        assert panel.get_ylabel() == f"{label} retained, %"
        assert points(panel) == {
            compressor_title(m): [(row["ratio"], row[key]) for row in rows] for m, rows in lines.items()
        }
    assert shows_colours(tmp_path / retention, [method_colour(method) for method in lines])
    (panel,) = figures[storage].axes
    by_label = {row["label"]: row for row in results["rows"]}
    assert points(panel)["one mean vector per page"] == [(1, by_label["1d-pooling@cap1"]["ndcg"])]
    assert {compressor_title(method) for method in lines} | {"full index", "one mean vector per page"} == set(
        points(panel)
    )
    ratios = sorted({row["ratio"] for rows in lines.values() for row in rows}, reverse=True)
    vectors = results["full_vectors"] / results["pages"]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == [
        f"{v:.0f}x" for v in (1, *(vectors * r for r in ratios), vectors)
    ]
    kept = [row["realised"] for row in lines["anchorfold"]]
    assert [text.get_text() for text in panel.texts] == [*(f"{share:.0f} %" for share in kept), "100 %"]
    (panel,) = figures[costs].axes
    ours = by_label["anchorfold@0.5"]["ndcg_retention"]
    assert points(panel) == {"full index": [(1, 100)], "AnchorFold": [(pytest.approx(1.1), ours)]}


def test_layer_settings_of_an_evaluation(corpus, checkpoints, tmp_path):
    def evaluated(folder, *arguments):
        run("eval", corpus, "--model", checkpoints["colpali"], "--methods", "anchorfold", "--ratios", "0.5",
            *arguments, "-o", tmp_path / folder)  # fmt: skip
        return json.loads(one_file(tmp_path / folder, "results.json").read_text())

    given = tmp_path / "given.json"
    given.write_text(json.dumps({"window": [1, 2], "sap_window": [0, 1], "layers": 6, "steps": 3}))
    results = evaluated("file", "--settings", given)
    assert (results["window"], results["sap_window"], results["steps"]) == ([1, 2], [0, 1], 3)
    assert results["source"] == str(given)
    run("report", tmp_path / "file")
    assert re.search(r"\| +1-2 \| +0-1 \| +3 \| +6 \| calibration file", (tmp_path / "file/report.md").read_text())
    assert evaluated("own")["source"] == "guess"
    for choice, message in (("paper", "the paper has no layer settings"), ("calibrated", "has no calibration"),
                            ("papers", "must be paper, calibrated or")):  # fmt: skip
        with pytest.raises(AnchorFoldError, match=message):
            evaluated("other", "--settings", choice)


def test_the_papers_layers_are_the_default_on_its_benchmarks():
    def chosen(choice, benchmark, layers=18):
        encoder.layer_settings = LayerSettings((1, 2), (0, 1), layers, 3, "mine.json", universal=4)
        choose_layers(encoder, choice, corpora(benchmark))
        return encoder.layer_settings

    def corpora(benchmark) -> Any:
        return [SimpleNamespace(benchmark=benchmark)]

    encoder: Any = SimpleNamespace(family="colpali", name="mine")
    assert chosen(None, "vidore-v2") == replace(PAPER["colpali"], universal=4)
    assert chosen(None, "vidore-v3").source == chosen(None, None).source == "mine.json"
    assert chosen(None, "vidore-v2", layers=6).source == "mine.json"
    assert chosen("paper", None).source == "paper"
    assert chosen("calibrated", "vidore-v2").source == "mine.json"


@pytest.mark.slow
def test_bench_times_each_method_in_a_process_of_its_own(corpus, checkpoints, tmp_path):
    output = run("bench", "efficiency", "--corpus", corpus, "--model", checkpoints["colpali"], "--methods",
                 "docpruner", "--ratio", "0.25", "--calibration", corpus, "--pages", 4, "--warm-up", 2,
                 "--passes", 2, "-o", tmp_path)  # fmt: skip
    assert "[" not in output
    assert "These latencies are not reliable: 4 pages, 2 warm-up pages, 2 passes." in " ".join(output.split())
    result = json.loads(one_file(tmp_path, "efficiency.json").read_text())
    assert [r["method"] for r in result["rows"]] == ["none@1", "docpruner@0.25"]
    assert all(0 <= r["compression"] < r["total"] for r in result["rows"])
    assert result["calibrated_on"] == str(corpus)


@pytest.mark.slow
def test_bench_needs_nothing_but_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(efficiency, "run_in_subprocess", efficiency.run_in_process)
    run("bench", "efficiency", "--methods", "1d-pooling", "--pages", 2, "--warm-up", 1, "--passes", 1, "-o", tmp_path)
    rows = json.loads(one_file(tmp_path, "efficiency.json").read_text())["rows"]
    assert [r["method"] for r in rows] == ["none@1", "1d-pooling@0.1"]


@pytest.mark.parametrize(("what", "lines"), [("variants", 5), ("windows", 9), ("depths", 7)])
def test_ablate_prints_a_table(corpus, checkpoints, tmp_path, what, lines):
    output = run("ablate", what, corpus, "--model", checkpoints["colpali"], "--ratio", "0.25", "--pairs", corpus,
                 "--count", 4, "-o", tmp_path)  # fmt: skip
    assert "paper" not in output
    assert len(json.loads(one_file(tmp_path, "results.json").read_text())["rows"]) == lines + 1
    result = json.loads(one_file(tmp_path, "ablation.json").read_text())
    assert len(result["rows"]) == lines
    assert (result["pairs"] == str(corpus)) == (what != "variants")
    assert all((r["pair_retention"] is not None) == (what != "variants") for r in result["rows"])
