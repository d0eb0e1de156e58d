import json
from itertools import islice

import numpy as np
import pytest
import torch

from anchorfold import maxsim
from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.evaluation import collect as collecting
from anchorfold.evaluation.collect import collect
from anchorfold.evaluation.corpus import Query, local_corpus
from anchorfold.evaluation.measure import compare, interval, measure, ndcg_by_query, page_scores
from anchorfold.evaluation.methods import FULL, VARIANTS, Method, choose_methods
from anchorfold.evaluation.results import save, summarise
from tests.number_reader import write_pdf


@pytest.fixture
def folder(tmp_path):
    write_pdf(tmp_path / "c/pdfs/a.pdf", [1, 22, 333])
    write_pdf(tmp_path / "c/pdfs/b.pdf", [44, 555])
    lines = [
        {"id": "q1", "text": "net revenue", "relevant": [["a.pdf", 1]], "kind": "title"},
        {"id": "q2", "text": "staff costs by region", "relevant": [["b.pdf", 0], ["b.pdf", 1]], "kind": "question"},
        {"id": "q3", "text": "excluded page", "relevant": [["a.pdf", 0]]},
    ]
    (tmp_path / "c/queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "c/exclude_pages.json").write_text('{"a.pdf": [0]}')
    return tmp_path / "c"


class TestCorpus:
    def test_pages_and_queries_without_what_is_excluded(self, folder):
        corpus = local_corpus(folder)
        assert corpus.ids() == ["a.pdf#1", "a.pdf#2", "b.pdf#0", "b.pdf#1"]
        assert [i for i, _ in corpus.pages(40_000)] == corpus.ids()
        assert [i for i, _ in corpus.pages(40_000, skip=3)] == ["b.pdf#1"]
        assert [i for i, _ in corpus.pages(40_000, only={"b.pdf#0"})] == ["b.pdf#0"]
        assert [q.id for q in corpus.queries] == ["q1", "q2"]

    def test_what_is_wrong_is_said(self, folder, tmp_path):
        with pytest.raises(AnchorFoldError, match="needs pdfs/"):
            local_corpus(tmp_path)
        (folder / "queries.jsonl").write_text('{"id": 1}')
        with pytest.raises(AnchorFoldError, match="line 1"):
            local_corpus(folder)
        (folder / "queries.jsonl").write_text("")
        with pytest.raises(AnchorFoldError, match="no query"):
            local_corpus(folder)


def test_methods_and_labels():
    chosen = choose_methods("anchorfold, docpruner", [0.2, 0.05], [128])
    labels = ["none@1", "anchorfold@0.2", "anchorfold@0.05", "anchorfold@cap128", "docpruner@0.2", "docpruner@0.05"]
    assert [m.label for m in chosen] == labels
    assert all(Method(v, ratio=0.2).make() for v in VARIANTS)
    with pytest.raises(AnchorFoldError, match="zip"):
        choose_methods("zip", [0.2])


def test_a_method_may_have_a_budget_of_its_own():
    chosen = choose_methods("all,1d-pooling@cap1,anchorfold@0.2,none", [0.2])
    names = ["none", "anchorfold", "semantic-clustering", "sap", "docpruner", "1d-pooling"]
    assert [m.label for m in chosen] == ["none@1", *(f"{n}@0.2" for n in names[1:]), "1d-pooling@cap1"]
    with pytest.raises(AnchorFoldError, match="sap@small has no budget"):
        choose_methods("sap@small", [0.2])


METHODS = choose_methods("anchorfold,sap,docpruner,1d-pooling,random-anchors", [0.5, 0.25], [3])


class TestCollecting:
    def test_vectors_are_those_of_each_compressor(self, folder, models, tmp_path):
        model, corpus = models["colpali"], local_corpus(folder)
        found = collect(corpus, model, METHODS, tmp_path / "run")
        assert found.pages == ["a.pdf#1", "a.pdf#2", "b.pdf#0", "b.pdf#1"]
        images = [image for _, image in corpus.pages(model.page_pixels)]
        for label in ("none@1", "anchorfold@0.25", "1d-pooling@cap3"):
            method = next(m for m in METHODS if m.label == label)
            vectors, lengths = found.vectors(label)
            expected = [p.vectors for p in model.encode_pages(images, method.make())]
            assert lengths.tolist() == [len(e) for e in expected]
            assert np.allclose(vectors, torch.cat(expected).numpy(), atol=2e-3)

    def test_an_interrupted_run_goes_on(self, folder, models, tmp_path, monkeypatch):
        model, corpus = models["colpali"], local_corpus(folder)
        whole = collect(corpus, model, METHODS, tmp_path / "whole")
        monkeypatch.setattr(collecting, "SAVE_EVERY", 1)
        encoded = []

        def stop(pages):
            encoded.append(pages)
            if len(encoded) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            collect(corpus, model, METHODS, tmp_path / "run", stop)
        again = collect(corpus, model, METHODS, tmp_path / "run", encoded.append)
        assert encoded == [1, 2, 3, 3, 4]  # the third page was not saved yet
        for method in METHODS:
            for one, other in zip(whole.vectors(method.label), again.vectors(method.label), strict=True):
                assert np.array_equal(one, other)

    def test_another_run_is_not_mixed_in(self, folder, models, tmp_path):
        collect(local_corpus(folder), models["colpali"], METHODS, tmp_path / "run")
        with pytest.raises(MismatchError, match=r"method sap@0.5 was sap \{'ratio': 0.5\}, is absent now"):
            collect(local_corpus(folder), models["colpali"], METHODS[:3], tmp_path / "run")
        with pytest.raises(MismatchError, match=r"model was colpali .*, is colqwen2 .* now"):
            collect(local_corpus(folder), models["colqwen2"], METHODS, tmp_path / "run")


class TestMeasuring:
    def test_scores_are_maxsim(self):
        rng = np.random.default_rng(0)
        lengths = np.array([3, 1, 5, 2], np.int32)
        vectors = rng.normal(size=(11, 8)).astype(np.float16)
        queries = [torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (2, 4)]
        pages = [torch.from_numpy(p.astype(np.float32)) for p in np.split(vectors, lengths.cumsum()[:-1])]
        assert torch.allclose(page_scores(queries, vectors, lengths), maxsim(queries, pages), atol=1e-5)

    def test_ndcg_by_hand(self):
        queries = [Query("q", "x", {"a": 1, "b": 1})]
        ideal = 1 + 1 / np.log2(3)
        assert ndcg_by_query({"q": {"a": 3.0, "b": 2.0}}, queries)["q"] == pytest.approx(100)
        found = ndcg_by_query({"q": {"z": 9.0, "a": 3.0, "y": 2.0, "x": 1.5, "w": 1.2, "b": 1.0}}, queries)["q"]
        assert found == pytest.approx(100 / np.log2(3) / ideal, abs=0.01)

    def test_everything_together(self, folder, models, tmp_path):
        model, corpus = models["colpali"], local_corpus(folder)
        collected = collect(corpus, model, METHODS, tmp_path / "run")
        encoded = model.encode_queries([q.text for q in corpus.queries])
        found = measure(collected, corpus.queries, encoded, [m.label for m in METHODS])
        assert found[FULL].retention == pytest.approx({"q1": 100, "q2": 100})
        rows = summarise(found, METHODS, corpus, "colpali")
        assert rows[0].kept == 100
        assert {r.label for r in rows} == {m.label for m in METHODS}
        by_label = {r.label: r for r in rows}
        assert by_label["anchorfold@0.25"].times_smaller == pytest.approx(4)
        assert set(by_label["sap@0.5"].by_kind) == {"title", "question"}
        save(tmp_path / "results.json", {"corpus": "c"}, rows, found)
        stored = json.loads((tmp_path / "results.json").read_text())
        assert set(stored["queries"]) == set(by_label)

    def test_intervals_are_paired(self):
        rng = np.random.default_rng(1)
        hard = {str(i): v for i, v in enumerate(rng.normal(50, 30, 200))}
        better = {k: v + 1 for k, v in hard.items()}
        found = compare(better, hard)
        assert found["difference"] == pytest.approx(1)
        assert 0.99 < found["low"] <= found["high"] < 1.01
        low, high = interval(list(hard.values()))
        assert low < np.mean(list(hard.values())) < high


def test_words_that_queries_share_are_scored_once_with_the_same_result():
    g = torch.Generator().manual_seed(0)
    words = torch.randn(30, 16, generator=g)
    queries = [words[torch.randint(0, 30, (n,), generator=g)] for n in (3, 0, 5, 8)]
    lengths, vectors = np.array([4, 0, 7, 2]), torch.randn(13, 16, generator=g).half().numpy()
    pages = torch.from_numpy(vectors.astype(np.float32)).split(lengths.tolist())
    torch.testing.assert_close(page_scores(queries, vectors, lengths), maxsim(queries, pages))


def test_pages_beyond_the_calibration_are_not_needed(folder, models):
    model, corpus = models["colpali"], local_corpus(folder)
    assert len(list(islice(corpus.pages(model.page_pixels), 128))) == 4


def test_the_nine_windows_are_those_of_the_paper():
    from anchorfold.evaluation import paper
    from anchorfold.evaluation.methods import relative_windows

    reported = [(f"{r['relative']} %", tuple(map(int, r["window"].split("-")))) for r in paper.table("windows")]
    assert relative_windows(36) == reported
    assert relative_windows(6)[-1] == ("80-100 %", (4, 5))
