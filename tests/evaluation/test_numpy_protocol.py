"""The paper's protocol in NumPy, from eager attention of tiny models, against `anchorfold eval`.

Method, pruning and pooling baselines, NDCG@5 and score retention are written from the paper's equations. Only the
cluster numbers of k-means are the package's. The task has the four languages of ViDoRe v2.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anchorfold.attention import tap
from anchorfold.cli.app import app, load_commands
from anchorfold.compressors.clustering import kmeans
from anchorfold.evaluation import benchmarks
from anchorfold.evaluation.benchmarks import FOUR
from anchorfold.evaluation.corpus import local_corpus
from tests.evaluation.tiny_suites import PAGES, WORDS, datasets, page_image
from tests.number_reader import write_pdf

load_commands()

pytestmark = pytest.mark.slow
TASK, RATIOS = "Vidore2ESGReportsRetrieval", (0.5, 0.2, 0.1, 0.05)
IMAGES = [page_image(900 + i) for i in range(PAGES)]
# Per language two queries; the second has two relevant pages.
QUERIES = {
    language: {"q0": (WORDS[i], ["p" + str(i)]), "q1": (f"{WORDS[i + 1]} {WORDS[i]}", ["p1", f"p{5 - i}"])}
    for i, language in enumerate(FOUR)
}


def multilingual_task(_):
    corpus = datasets.Dataset.from_dict({"id": [f"p{i}" for i in range(PAGES)], "image": IMAGES})
    data = {
        language: {"test": {
            "corpus": corpus.cast_column("image", datasets.Image()),
            "queries": [{"id": key, "text": text} for key, (text, _) in queries.items()],
            "relevant_docs": {key: dict.fromkeys(set(pages), 1) for key, (_, pages) in queries.items()},
        }}
        for language, queries in QUERIES.items()
    }  # fmt: skip
    metadata = SimpleNamespace(name=TASK, eval_splits=["test"], dataset={"path": "here", "revision": "1"})
    return SimpleNamespace(
        metadata=metadata, hf_subsets=list(FOUR), dataset=data, load_data=lambda: None,
        convert_v1_dataset_format_to_v2=lambda num_proc: None,
    )  # fmt: skip


class EagerPage:
    """Attention `(layers, H, T, T)`, hidden states `(N, d)` and visual positions of a page, by the eager kernel."""

    def __init__(self, model, image):
        batch = model.prepare_pages([image])
        attention: dict[int, torch.Tensor] = {}
        hidden: list[torch.Tensor] = []
        handles = [
            layer.register_forward_hook(lambda m, a, out, i=i: attention.__setitem__(i, out[1][0]))
            for i, layer in enumerate(model.attention_layers)
        ]
        handles.append(model.projection.register_forward_pre_hook(lambda m, a: hidden.append(a[0][0])))
        configs = [(c, c._attn_implementation) for c in tap._configs(model.model)]
        for config, _ in configs:
            config._attn_implementation_internal = "eager"
        with torch.no_grad():
            model.forward(batch.inputs)
        for config, before in configs:
            config._attn_implementation_internal = before
        for handle in handles:
            handle.remove()
        self.visual = batch.visual[0].nonzero().flatten().numpy()
        self.attention = np.stack([attention[i].double().numpy() for i in sorted(attention)])
        self.hidden = hidden[-1].double().numpy()[self.visual]

    def block(self, layer):
        """Attention among visual tokens `(H, N, N)`."""
        return self.attention[layer][:, self.visual][:, :, self.visual]

    def centrality(self, window, steps):
        total = 0
        for layer in range(window[0], window[1] + 1):
            graph = self.block(layer)
            graph = graph / graph.sum(2, keepdims=True)
            support = np.full(graph.shape[:2], 1 / graph.shape[1])
            for _ in range(steps):
                support = np.einsum("hij,hi->hj", graph, support)
            score = np.sqrt((support**2).mean(0))
            total = total + score / score.mean()
        return total / (window[1] - window[0] + 1)

    def in_degree(self, window):
        return np.mean([self.block(layer).sum(1).mean(0) for layer in range(window[0], window[1] + 1)], 0)

    def global_attention(self):
        text = np.setdiff1d(np.arange(self.attention.shape[2]), self.visual)
        scores = self.attention[-1][:, text[-1], self.visual].mean(0)
        return (scores - scores.mean()) / scores.std()


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def projection_of(model):
    weight = getattr(model.projection, "weight", None)
    if weight is None:
        return lambda z: z
    weight, bias = (t.detach().double().numpy() for t in (weight, model.projection.bias))
    return lambda z: z @ weight.T + bias


def fold(page, project, settings, m):
    alpha, e = page.centrality(settings.window, settings.steps), unit(project(page.hidden))
    anchors = np.argsort(-alpha, kind="stable")[:m]
    owner = np.argmax(e @ e[anchors].T, 1)
    owner[anchors] = np.arange(m)
    states = [np.average(page.hidden[owner == q], 0, alpha[owner == q]) for q in range(m)]
    return unit(project(np.array(states)))


def compressed(method, page, project, settings, ratio, threshold):
    e = unit(project(page.hidden))
    n = len(e)
    m = int(np.ceil(round(ratio * n, 9)))
    if method == "none" or m == n:
        return e
    if method == "anchorfold":
        return fold(page, project, settings, m)
    if method == "sap":
        return e[np.argsort(-page.in_degree(settings.sap_window), kind="stable")[:m]]
    if method == "docpruner":
        scores = page.global_attention()
        return e[(scores > threshold) | (np.arange(n) == scores.argmax())]
    if method == "1d-pooling-raw":
        return np.array([part.mean(0) for part in np.split(e, [-(-q * n // m) for q in range(1, m)])])
    labels = kmeans(torch.from_numpy(e).float(), m).numpy()
    return np.array([e[labels == q].mean(0) for q in range(m)])


def maxsim(query, vectors):
    return (query @ vectors.astype(np.float16).astype(np.float64).T).max(1).sum()


def ndcg(scores, relevant):
    ranked = np.argsort(-scores)[:5]
    gain = sum(1 / np.log2(rank + 2) for rank, page in enumerate(ranked) if page in relevant)
    return 100 * gain / sum(1 / np.log2(rank + 2) for rank in range(min(5, len(relevant))))


@pytest.mark.parametrize("kind", ["colpali", "colqwen2.5", "nemotron"])
def test_evaluation_equals_the_papers_equations(kind, models, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "load_task", multilingual_task)
    held_out = tmp_path / "held-out"
    write_pdf(held_out / "pdfs/a.pdf", [111, 222, 333])
    (held_out / "queries.jsonl").write_text(json.dumps({"id": "q", "text": "net", "relevant": [["a.pdf", 0]]}))
    methods = ("anchorfold", "sap", "docpruner", "1d-pooling-raw", "semantic-clustering-raw")
    arguments = ["eval", TASK, "--model", checkpoints[kind], "--methods", ",".join(methods), "--calibration", held_out,
                 "--ratios", ",".join(map(str, RATIOS)), "-o", tmp_path / "results"]  # fmt: skip
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "results").rglob("results.json")
    rows = {row["label"]: row for row in json.loads(path.read_text())["rows"]}
    assert set(rows["none@1"]["by_kind"]) == set(FOUR)

    model = models[kind]
    settings, project = model.layer_settings, projection_of(model)
    pages = [EagerPage(model, image) for image in IMAGES]
    calibration = [EagerPage(model, image) for _, image in local_corpus(held_out).pages(model.page_pixels)]
    pooled = np.concatenate([page.global_attention() for page in calibration])
    asked = [
        (language, text, {int(p[1:]) for p in answers})
        for language, queries in QUERIES.items()
        for text, answers in queries.values()
    ]
    vectors = [q.double().numpy() for q in model.encode_queries([text for _, text, _ in asked])]

    def table(method, ratio):
        threshold = np.quantile(pooled, 1 - ratio)
        small = [compressed(method, page, project, settings, ratio, threshold) for page in pages]
        return np.array([[maxsim(query, page) for page in small] for query in vectors]), sum(map(len, small))

    full, size = table("none", 1.0)
    reference = np.mean([ndcg(row, relevant) for row, (_, _, relevant) in zip(full, asked, strict=True)])
    assert rows["none@1"]["ndcg"] == pytest.approx(reference, abs=1e-3)
    for method in methods:
        for ratio in RATIOS:
            scores, kept = table(method, ratio)
            values = [ndcg(row, relevant) for row, (_, _, relevant) in zip(scores, asked, strict=True)]
            retained = []
            for before, after, (_, _, relevant) in zip(full, scores, asked, strict=True):
                pairs = [100 * after[p] / before[p] for p in relevant if before[p] > 0]
                retained += [np.mean(pairs)] if pairs else []
            row = rows[f"{method}@{ratio:g}"]
            assert row["realised"] == pytest.approx(100 * kept / size, abs=1e-6), (method, ratio)
            assert row["score_retention"] == pytest.approx(np.mean(retained), abs=0.05), (method, ratio)
            assert row["ndcg"] == pytest.approx(np.mean(values), abs=1e-3), (method, ratio)
            assert row["ndcg_retention"] == pytest.approx(100 * np.mean(values) / reference, abs=1e-2)
            for language in FOUR:
                own = [v for v, (spoken, _, _) in zip(values, asked, strict=True) if spoken == language]
                assert row["by_kind"][language] == pytest.approx(np.mean(own), abs=1e-3)
