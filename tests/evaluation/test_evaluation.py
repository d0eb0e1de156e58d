import json
import pickle
import re
import threading

import numpy as np
import pytest
import torch

from anchorfold import maxsim
from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.evaluation import score_pages as scoring_pass
from anchorfold.evaluation.corpus import Query, local_corpus
from anchorfold.evaluation.held_out_pages import HeldOutPages, calibrated_compressors, find_held_out
from anchorfold.evaluation.methods import (
    FULL,
    NORMALIZED_BASELINES,
    Method,
    choose_methods,
    paper_methods,
    takes_cap,
    variants,
)
from anchorfold.evaluation.metrics import interval, measure, ndcg_by_query, paired_difference
from anchorfold.evaluation.page_loader import PageDataset, named_pages
from anchorfold.evaluation.results import save, summarize
from anchorfold.evaluation.run import RunPlan, progress_line
from anchorfold.evaluation.score_pages import PageScores, QueryScores, prefetch, score_pages
from tests.number_reader import read_number, write_pdf


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
        assert corpus.names() == ["a.pdf#1", "a.pdf#2", "b.pdf#0", "b.pdf#1"]
        assert [i for i, _ in corpus.pages(40_000)] == corpus.names()
        assert [i for i, _ in corpus.pages(40_000, skip=3)] == ["b.pdf#1"]
        assert [i for i, _ in corpus.pages(40_000, only={"b.pdf#0"})] == ["b.pdf#0"]
        assert [q.id for q in corpus.queries] == ["q1", "q2"]

    def test_invalid_corpora_are_refused(self, folder, tmp_path):
        with pytest.raises(AnchorFoldError, match=r"queries\.jsonl are required"):
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
    assert all(Method(v, ratio=0.2).make() for v in variants())
    with pytest.raises(AnchorFoldError, match="zip"):
        choose_methods("zip", [0.2])


def test_a_method_may_have_a_budget_of_its_own():
    chosen = choose_methods("all,1d-pooling@cap1,anchorfold@0.2,none", [0.2])
    assert [m.label for m in chosen] == [
        "none@1",
        *(f"{n}@0.2" for n in (*paper_methods(), *NORMALIZED_BASELINES)),
        "1d-pooling@cap1",
    ]
    with pytest.raises(AnchorFoldError, match="sap@small is not a method with a budget"):
        choose_methods("sap@small", [0.2])


def test_methods_are_asked_of_the_compressors_and_of_the_paper():
    assert paper_methods() == ["anchorfold", "1d-pooling-raw", "semantic-clustering-raw", "docpruner", "sap"]
    assert variants()["random-anchors"] == ("anchorfold", {"anchors": "random"})
    assert {name for name, _ in variants().values()} == {"anchorfold"}  # a subclass has no variants of its own
    assert takes_cap("anchorfold")
    assert takes_cap("one-step")
    assert not takes_cap("docpruner")


METHODS = choose_methods("anchorfold,sap,docpruner,1d-pooling,random-anchors", [0.5, 0.25], [3])


@pytest.fixture
def compressors(folder, models, tmp_path):
    """Of `METHODS`, calibrated on the corpus itself."""
    held_out = find_held_out(str(folder), [], models["colpali"].page_pixels)
    return calibrated_compressors(METHODS, models["colpali"], held_out, tmp_path / "calibrated.json")[0]


class TestScoringPages:
    def test_scores_are_maxsim_of_each_compressor(self, folder, models, compressors, tmp_path):
        model, corpus = models["colpali"], local_corpus(folder)
        scored = score_pages(corpus, model, compressors, tmp_path / "run", keep_vectors=True)
        assert scored.pages == ["a.pdf#1", "a.pdf#2", "b.pdf#0", "b.pdf#1"]
        images = [image for _, image in corpus.pages(model.page_pixels)]
        queries = model.encode_queries([q.text for q in corpus.queries])
        for label, compressor in compressors.items():
            pages = [p.vectors.half() for p in model.encode_documents(images, compressor)]
            torch.testing.assert_close(torch.from_numpy(np.array(scored.scores(label))), maxsim(queries, pages).T)
            assert scored.lengths(label).tolist() == [len(p) for p in pages]
            assert np.allclose(scored.vectors(label), torch.cat(pages).numpy(), atol=2e-3)

    def test_no_vectors_on_disk_by_default(self, folder, models, compressors, tmp_path):
        score_pages(local_corpus(folder), models["colpali"], compressors, tmp_path / "run")
        written = list((tmp_path / "run").iterdir())
        assert {p.suffix for p in written} == {".scores", ".lengths", ".json"}
        plan = RunPlan.of(local_corpus(folder), len(compressors))
        assert sum(p.stat().st_size for p in written if p.suffix != ".json") == plan.bytes

    @pytest.mark.parametrize("batch", [1, 3])
    def test_batches_and_methods_do_not_change_scores(self, folder, models, compressors, tmp_path, batch):
        model, corpus = models["colpali"], local_corpus(folder)
        scored = score_pages(corpus, model, compressors, tmp_path / "run", batch=batch)
        alone = {k: compressors[k] for k in (FULL, "anchorfold@0.25")}
        other = score_pages(corpus, model, alone, tmp_path / "alone", batch=2)
        for label in alone:
            np.testing.assert_allclose(scored.scores(label), other.scores(label), rtol=1e-4)

    def test_an_interrupted_run_goes_on(self, folder, models, compressors, tmp_path, monkeypatch):
        model, corpus = models["colpali"], local_corpus(folder)
        whole = score_pages(corpus, model, compressors, tmp_path / "whole")
        monkeypatch.setattr(scoring_pass, "SAVE_EVERY", 1)
        done = []

        def stop(pages):
            done.append(pages)
            if len(done) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            score_pages(corpus, model, compressors, tmp_path / "run", progress=stop)
        again = score_pages(corpus, model, compressors, tmp_path / "run", progress=done.append)
        assert done == [1, 2, 3, 3, 4]  # the third page was not saved yet
        for label in compressors:
            assert np.array_equal(whole.scores(label), again.scores(label))
            assert np.array_equal(whole.lengths(label), again.lengths(label))

    def test_another_run_is_not_mixed_in(self, folder, models, compressors, tmp_path):
        score_pages(local_corpus(folder), models["colpali"], compressors, tmp_path / "run")
        fewer = dict(list(compressors.items())[:3])
        with pytest.raises(MismatchError, match=r"method anchorfold@cap3 was .*, is absent now"):
            score_pages(local_corpus(folder), models["colpali"], fewer, tmp_path / "run")
        with pytest.raises(MismatchError, match=r"model was colpali .*, is colqwen2 .* now"):
            score_pages(local_corpus(folder), models["colqwen2"], compressors, tmp_path / "run")


class TestLoadingPages:
    @pytest.mark.slow
    def test_loader_processes_keep_the_order(self, folder):
        corpus = local_corpus(folder)
        pages = [(name, read_number(image)) for name, image in named_pages(corpus, 40_000, loaders=2)]
        assert pages == [("a.pdf#1", 22), ("a.pdf#2", 333), ("b.pdf#0", 44), ("b.pdf#1", 555)]

    def test_what_a_loader_cannot_read_is_one_sentence(self, folder):
        corpus = local_corpus(folder)
        (folder / "pdfs/b.pdf").write_bytes(b"%PDF-")
        *_, (name, problem) = PageDataset(corpus.lazy_pages, 40_000, 1)
        assert name == ""
        assert re.fullmatch(r".*b\.pdf cannot be read: [^\n]*\.", str(problem))

    def test_what_loader_processes_get_survives_pickling(self, folder):
        source = pickle.loads(pickle.dumps(local_corpus(folder).lazy_pages))
        assert [name for name, _ in source(1)] == local_corpus(folder).names()

    def test_a_thread_runs_ahead_and_hands_errors_over(self):
        third = threading.Event()

        def items():
            for i in range(5):
                if i == 2:
                    third.set()
                yield i
            raise ValueError("five")

        coming = prefetch(items(), depth=2)
        assert next(coming) == 0
        assert third.wait(60)  # although the second was not requested yet
        assert [next(coming) for _ in range(4)] == [1, 2, 3, 4]
        with pytest.raises(ValueError, match="five"):
            next(coming)
        assert list(prefetch(iter([]))) == []


class TestHeldOutPages:
    def test_one_threshold_for_all_is_calibrated_once(self, folder, models, tmp_path):
        model, store = models["colpali"], tmp_path / "calibrated.json"
        methods = choose_methods("docpruner", [0.5, 0.25])
        held_out = find_held_out(str(folder), [], model.page_pixels)
        first, source = calibrated_compressors(methods, model, held_out, store)
        assert source == str(folder)
        assert first["docpruner@0.5"].options["threshold"] < first["docpruner@0.25"].options["threshold"]

        def unread(_):
            raise AssertionError("the pages were read again")

        again, _ = calibrated_compressors(methods, model, HeldOutPages(str(folder), unread), store)
        assert {k: c.options for k, c in again.items()} == {k: c.options for k, c in first.items()}
        with pytest.raises(AssertionError, match="read again"):
            calibrated_compressors(methods, model, HeldOutPages("other pages", unread), store)

    def test_without_any_it_is_said(self, folder, monkeypatch):
        from anchorfold.evaluation import held_out_pages as held_out

        def unreachable(*_):
            raise AnchorFoldError("no hub")

        monkeypatch.setattr(held_out, "require_training_set", unreachable)
        held_out_pages = find_held_out(None, [local_corpus(folder)], 40_000)
        assert held_out_pages.evaluated
        assert held_out_pages.source == "the evaluated pages"
        assert len(list(held_out_pages.images(128))) == 4
        with pytest.raises(AnchorFoldError, match="cannot be read as a dataset"):
            list(find_held_out("no/such/set", [], 40_000).images(1))


class TestPlan:
    def test_what_is_printed(self, folder):
        plan = RunPlan.of(local_corpus(folder), 26)
        assert str(plan) == "c: 4 pages x 2 queries x 26 methods, 0 MB of scores"

    def test_time_is_estimated_after_the_first_pages(self):
        now = iter([100.0, 104.0, 110.0])
        line = progress_line(RunPlan("c", 1000, 5, 2), lambda: next(now))
        assert line(300) == "c: 300 of 1,000 pages"  # the pages of an earlier run were not made now
        assert line(304) == "c: 304 of 1,000 pages"
        assert line(320) == "c: 320 of 1,000 pages, 2 per second, about 6 min left"

    def test_the_whole_paper_needs_less_than_five_gigabytes(self):
        """Five methods at four ratios and the full index, on as many pages and queries as mteb says there are."""
        mteb = pytest.importorskip("mteb")
        from anchorfold.evaluation.benchmarks import BENCHMARKS, PAPER_SUITES

        pages = total = 0
        for task in (t for suite in PAPER_SUITES for t in BENCHMARKS[suite].values()):
            stats = mteb.get_task(task.name).metadata.descriptive_stats["test"]
            subsets = list(stats.get("hf_subset_descriptive_stats", {}).values()) or [stats]
            texts = [s["queries_text_statistics"]["unique_texts"] for s in subsets]
            documents = max(s["num_samples"] - t for s, t in zip(subsets, texts, strict=True))
            pages += documents
            total += RunPlan(task.name, documents, sum(texts), 21).bytes
        assert 15_000 < pages < 25_000
        assert total < 5e9


def scored_run(folder, pages, scores, dim=4):
    """A finished pass as its files: scores `(pages, queries)` of each label, one vector per page."""
    for label, values in scores.items():
        np.asarray(values, np.float32).tofile(folder / f"{label}.scores")
        np.ones(len(pages), np.int32).tofile(folder / f"{label}.lengths")
    return PageScores(folder, pages, len(next(iter(scores.values()))[0]), dim)


class TestMeasuring:
    def test_scores_are_maxsim(self):
        g = torch.Generator().manual_seed(0)
        queries = [torch.randn(n, 8, generator=g) for n in (2, 4)]
        pages = [torch.randn(n, 8, generator=g).half() for n in (3, 1, 5, 2)]
        torch.testing.assert_close(QueryScores(queries)(pages), maxsim(queries, pages).T)

    def test_words_that_queries_share_are_scored_once_with_the_same_result(self, monkeypatch):
        from anchorfold.evaluation import score_pages as query_scores

        monkeypatch.setitem(query_scores.PRODUCT_BYTES, "cpu", 300)  # several products
        g = torch.Generator().manual_seed(0)
        words = torch.randn(30, 16, generator=g)
        queries = [words[torch.randint(0, 30, (n,), generator=g)] for n in (3, 0, 5, 8)]
        pages = [torch.randn(n, 16, generator=g).half() for n in (4, 0, 7, 2)]
        scores = QueryScores(queries)
        assert len(scores.distinct) < 16
        expected = maxsim(queries, pages).T
        torch.testing.assert_close(scores(pages), expected)

    def test_retention_of_a_query_is_the_mean_over_its_relevant_pages(self, tmp_path):
        queries = [Query("q", "x", {"a": 1, "b": 1}), Query("r", "x", {"c": 1}), Query("s", "x", {"b": 1, "c": 1})]
        full = [[4.0, 1.0, 1.0], [2.0, 1.0, 5.0], [1.0, 0.0, -1.0]]
        small = [[3.0, 1.0, 1.0], [1.0, 1.0, 4.0], [1.0, 0.0, 9.0]]
        scored = scored_run(tmp_path, ["a", "b", "c"], {FULL: full, "sap@0.5": small})
        measured = measure(scored, queries, [FULL, "sap@0.5"])
        # q: 3/4 and 1/2; r: nothing to keep; s: only b scores above 0.
        assert measured["sap@0.5"].retention == pytest.approx({"q": 62.5, "s": 80})
        assert measured[FULL].retention == pytest.approx({"q": 100, "s": 100})

    def test_ndcg_by_hand(self):
        queries = [Query("q", "x", {"a": 1, "b": 1})]
        ideal = 1 + 1 / np.log2(3)
        assert ndcg_by_query({"q": {"a": 3.0, "b": 2.0}}, queries)["q"] == pytest.approx(100)
        ndcg = ndcg_by_query({"q": {"z": 9.0, "a": 3.0, "y": 2.0, "x": 1.5, "w": 1.2, "b": 1.0}}, queries)["q"]
        assert ndcg == pytest.approx(100 / np.log2(3) / ideal, abs=0.01)

    def test_everything_together(self, folder, models, compressors, tmp_path):
        model, corpus = models["colpali"], local_corpus(folder)
        scored = score_pages(corpus, model, compressors, tmp_path / "run")
        measured = measure(scored, corpus.queries, [m.label for m in METHODS])
        assert measured[FULL].retention == pytest.approx({"q1": 100, "q2": 100})
        rows = summarize(measured, METHODS, corpus, "colpali")
        assert rows[0].ndcg_retention == 100
        assert {r.label for r in rows} == {m.label for m in METHODS}
        by_label = {r.label: r for r in rows}
        assert by_label["anchorfold@0.25"].realised == pytest.approx(25)
        assert set(by_label["sap@0.5"].by_kind) == {"title", "question"}
        save(tmp_path / "results.json", {"corpus": "c"}, rows, measured)
        stored = json.loads((tmp_path / "results.json").read_text())
        assert set(stored["queries"]) == set(by_label)

    def test_intervals_are_paired(self):
        rng = np.random.default_rng(1)
        hard = {str(i): v for i, v in enumerate(rng.normal(50, 30, 200))}
        better = {k: v + 1 for k, v in hard.items()}
        comparison = paired_difference(better, hard)
        assert comparison["difference"] == pytest.approx(1)
        assert 0.99 < comparison["low"] <= comparison["high"] < 1.01
        low, high = interval(list(hard.values()))
        assert low < np.mean(list(hard.values())) < high


def test_the_nine_windows_are_those_of_the_paper():
    from anchorfold.evaluation import paper
    from anchorfold.evaluation.methods import relative_windows

    reported = [(f"{r['relative']} %", tuple(map(int, r["window"].split("-")))) for r in paper.table("windows")]
    assert relative_windows(36) == reported
    assert relative_windows(6)[-1] == ("80-100 %", (4, 5))
