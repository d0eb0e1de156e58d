"""The mteb path offline: a task of mteb's own class whose data are made here, as the hub would give them."""

import warnings
from statistics import fmean
from typing import ClassVar

import pytest

import anchorfold
from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.evaluation import benchmarks, paper
from anchorfold.evaluation.benchmarks import (
    BENCHMARKS,
    PAPER_SUITES,
    BenchmarkTask,
    check_task,
    find_corpora,
    task_corpus,
)
from anchorfold.evaluation.methods import choose_methods
from anchorfold.evaluation.metrics import measure
from anchorfold.evaluation.mteb_model import FoldedSearch
from anchorfold.evaluation.score_pages import score_pages
from tests.number_reader import page_image, read_number

datasets = pytest.importorskip("datasets")
mteb = pytest.importorskip("mteb")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

LANGUAGES = {"english": ["eng-Latn"], "french": ["fra-Latn"]}


class TinyRetrieval(AbsTaskRetrieval):
    """Six pages, two languages of queries, as ViDoRe v2's tasks hold them."""

    metadata = TaskMetadata(
        name="Vidore2ESGReportsRetrieval", description="tiny", dataset={"path": "here", "revision": "1"},
        type="DocumentUnderstanding", category="t2i", eval_splits=["test"], eval_langs=LANGUAGES,
        main_score="ndcg_at_5", modalities=["text", "image"],
    )  # fmt: skip
    numbers: ClassVar[list[int]] = [11, 22, 33, 44, 55, 66]

    def load_data(self, num_proc=None, **_):
        pages = {"id": [f"p{n}" for n in self.numbers], "image": [page_image(n) for n in self.numbers]}
        corpus = datasets.Dataset.from_dict(pages).cast_column("image", datasets.Image())
        self.corpus = {lang: {"test": corpus} for lang in LANGUAGES}
        self.queries, self.relevant_docs = {}, {}
        for lang in LANGUAGES:
            ids = [f"{lang}{i}" for i in range(3)]
            queries = datasets.Dataset.from_dict({"id": ids, "text": [f"text of {i}" for i in ids]})
            grades = [{f"p{self.numbers[i]}": 1, f"p{self.numbers[i + 1]}": 0} for i in range(3)]
            self.queries[lang] = {"test": queries}
            self.relevant_docs[lang] = {"test": dict(zip(ids, grades, strict=True))}
        self.data_loaded = True


def test_every_data_set_of_the_paper_has_its_task():
    for benchmark in PAPER_SUITES:
        named = {r["dataset"] for r in paper.table("datasets") if r["benchmark"] == benchmark}
        assert set(BENCHMARKS[benchmark]) == named
        for task in BENCHMARKS[benchmark].values():
            assert mteb.get_task(task.name).metadata.main_score == "ndcg_at_5"


@pytest.mark.parametrize("known", [t for tasks in BENCHMARKS.values() for t in tasks.values()], ids=lambda t: t.name)
def test_names_splits_and_languages_are_those_of_the_installed_mteb(known):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # mteb warns about a task that it has renamed
        task = mteb.get_task(known.name)
    assert task.metadata.name == known.name
    check_task(task, known)
    assert task.metadata.dataset["revision"]


@pytest.mark.slow
def test_all_public_data_sets_of_vidore_v3_are_there():
    public = {t.metadata.name for t in mteb.get_benchmark("ViDoRe(v3)").tasks if t.metadata.is_public}
    assert {t.name for t in BENCHMARKS["vidore-v3"].values()} == public


def test_a_task_that_changed_is_refused():
    tiny = TinyRetrieval()
    check_task(tiny, BenchmarkTask("Vidore2ESGReportsRetrieval", ("english", "french")))
    with pytest.raises(
        AnchorFoldError, match=r"evaluates Vidore2ESGReportsRetrieval on \['test'\], not on \['train'\]"
    ):
        check_task(tiny, BenchmarkTask("Vidore2ESGReportsRetrieval", ("english", "french"), ("train",)))
    with pytest.raises(AnchorFoldError, match=r"has .*, not .*german"):
        check_task(tiny, BenchmarkTask("Vidore2ESGReportsRetrieval", ("english", "german")))
    with pytest.raises(AnchorFoldError, match="has no task Vidore9"):
        benchmarks.load_task("Vidore9")
    assert find_corpora("no-such-benchmark") is None


def test_a_task_becomes_a_corpus_of_all_its_languages():
    corpus = task_corpus(TinyRetrieval(), "ESG Reports", "vidore-v2")
    pages = list(corpus.pages(1))
    assert [(i, read_number(image)) for i, image in pages][:2] == [("test/p11", 11), ("test/p22", 22)]
    assert len(pages) == 6
    assert corpus.names() == [i for i, _ in pages]
    assert [i for i, _ in corpus.pages(1, skip=4)] == ["test/p55", "test/p66"]
    assert {q.kind for q in corpus.queries} == {"english", "french"}
    assert corpus.queries[0].relevant == {"test/p11": 1}


def test_another_revision_of_a_task_is_another_run(models, tmp_path):
    class Newer(TinyRetrieval):
        metadata = TinyRetrieval.metadata.model_copy(update={"dataset": {"path": "here", "revision": "2"}})

    class Longer(TinyRetrieval):
        numbers: ClassVar[list[int]] = [*TinyRetrieval.numbers, 77]

    full = {m.label: m.make() for m in choose_methods("none", [])}
    score_pages(task_corpus(TinyRetrieval(), "ESG Reports", "vidore-v2"), models["colpali"], full, tmp_path)
    for task, message in ((Newer, "data set revision was 1, is 2 now"), (Longer, "pages was 6, .*, is 7, ")):
        with pytest.raises(MismatchError, match=message):
            score_pages(task_corpus(task(), "ESG Reports", "vidore-v2"), models["colpali"], full, tmp_path)


def test_mteb_measures_what_we_measure(models, tmp_path):
    model = FoldedSearch(models["colpali"], anchorfold.AnchorFold(ratio=0.5))
    results = mteb.evaluate(model, TinyRetrieval(), cache=None, overwrite_strategy="always")
    scores = results.task_results[0].scores["test"]
    corpus = task_corpus(TinyRetrieval(), "ESG Reports", "vidore-v2")
    methods = choose_methods("anchorfold", [0.5])
    scored = score_pages(corpus, models["colpali"], {m.label: m.make() for m in methods}, tmp_path)
    measured = measure(scored, corpus.queries, [m.label for m in methods])["anchorfold@0.5"].ndcg
    ours = {lang: fmean(measured[q.id] for q in corpus.queries if q.kind == lang) for lang in LANGUAGES}
    assert {s["hf_subset"]: 100 * s["main_score"] for s in scores} == pytest.approx(ours, abs=0.01)


def test_a_task_is_a_corpus_by_name(monkeypatch):
    monkeypatch.setattr(benchmarks, "load_task", lambda _: TinyRetrieval())
    monkeypatch.setattr(benchmarks, "check_task", lambda *_: None)
    (corpus,) = find_corpora("Vidore2ESGReportsRetrieval") or []
    assert (corpus.name, corpus.benchmark) == ("ESG Reports", "vidore-v2")


def test_a_failed_download_is_one_sentence():
    class Offline(TinyRetrieval):
        def load_data(self, num_proc=None, **_):
            raise ConnectionError("no route to the hub\nand a long story")

    with pytest.raises(AnchorFoldError, match=r"Retrieval cannot be downloaded: no route to the hub\.$"):
        task_corpus(Offline(), "ESG Reports", "vidore-v2")
