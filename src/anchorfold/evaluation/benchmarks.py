"""The paper's benchmarks through mteb's tasks: the official test splits, languages and query variants."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from PIL import Image

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import Corpus, Query, Unrendered
from anchorfold.evaluation.run_key import digest_of

# mteb's task for each data set, by the names that the paper's tables use. REAL-MM-RAG's tasks ask the queries of
# rephrase level 3; ViDoRe v2's hold all four languages.
BENCHMARKS: dict[str, dict[str, str]] = {
    "vidore-v1": {
        "ArxivQA": "VidoreArxivQARetrieval",
        "DocVQA": "VidoreDocVQARetrieval",
        "InfoVQA": "VidoreInfoVQARetrieval",
        "TabFQuAD": "VidoreTabfquadRetrieval",
        "TAT-DQA": "VidoreTatdqaRetrieval",
        "Shift Project": "VidoreShiftProjectRetrieval",
        "Synthetic AI": "VidoreSyntheticDocQAAIRetrieval",
        "Synthetic Energy": "VidoreSyntheticDocQAEnergyRetrieval",
        "Synthetic Government": "VidoreSyntheticDocQAGovernmentReportsRetrieval",
        "Synthetic Healthcare": "VidoreSyntheticDocQAHealthcareIndustryRetrieval",
    },
    "vidore-v2": {
        "ESG Reports": "Vidore2ESGReportsRetrieval",
        "Biomedical Lectures": "Vidore2BioMedicalLecturesRetrieval",
        "Economics Reports": "Vidore2EconomicsReportsRetrieval",
        "ESG Reports (Human)": "Vidore2ESGReportsHLRetrieval",
    },
    "real-mm-rag": {
        "FinReport": "RealMMRAGFinReportRetrieval",
        "FinSlides": "RealMMRAGFinSlidesRetrieval",
        "TechReport": "RealMMRAGTechReportRetrieval",
        "TechSlides": "RealMMRAGTechSlidesRetrieval",
    },
}


def load_task(name: str) -> Any:
    """One of mteb's tasks."""
    try:
        import mteb
    except ImportError as error:
        raise AnchorFoldError("the benchmarks need mteb: pip install 'anchorfold[eval]'.") from error
    return mteb.get_task(name)


def task_corpus(task: Any, name: str, benchmark: str) -> Corpus:
    """A task of mteb as a corpus: every page once, the queries of all its languages."""
    try:
        task.load_data()
    except (ConnectionError, OSError) as error:
        raise AnchorFoldError(f"{task.metadata.name} cannot be downloaded: {str(error).splitlines()[0]}.") from error
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    parts = [
        (subset, split, task.dataset[subset][split]) for subset in task.dataset for split in task.metadata.eval_splits
    ]
    queries: list[Query] = []
    corpora: dict[str, Any] = {}
    for subset, split, data in parts:
        corpora.setdefault(split, data["corpus"])
        for row in data["queries"]:
            grades = data["relevant_docs"].get(row["id"], {})
            relevant = {f"{split}/{page}": int(g) for page, g in grades.items() if int(g) > 0}
            if relevant:
                queries.append(Query(f"{subset}/{split}/{row['id']}", row["text"], relevant, subset))

    def unrendered(_: int) -> Iterator[Unrendered]:
        for split, corpus in corpora.items():
            for number, page in enumerate(corpus["id"]):
                yield f"{split}/{page}", partial(row_image, corpus, number)

    def origin() -> dict[str, Any]:
        pages = [f"{split}/{page}" for split, corpus in corpora.items() for page in corpus["id"]]
        return {"task": task.metadata.name, "data set": dict(task.metadata.dataset), "pages": digest_of(pages)}

    return Corpus(name, unrendered, tuple(queries), benchmark, origin)


def row_image(rows: Any, number: int) -> Image.Image:
    """The page image of one row of a data set."""
    return rows[number]["image"].convert("RGB")


def find_corpora(source: str) -> list[Corpus] | None:
    """All data sets of a benchmark of the paper, or the one of mteb's tasks with that name; None if it is neither."""
    if source in BENCHMARKS:
        return [task_corpus(load_task(task), name, source) for name, task in BENCHMARKS[source].items()]
    for benchmark, tasks in BENCHMARKS.items():
        for name, task in tasks.items():
            if source == task:
                return [task_corpus(load_task(task), name, benchmark)]
    return None
