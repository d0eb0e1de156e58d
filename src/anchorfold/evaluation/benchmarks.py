"""Benchmarks through mteb's tasks: the official test splits, languages and query variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import Corpus, Query, Unrendered
from anchorfold.evaluation.run_key import digest_of

FOUR = ("english", "french", "german", "spanish")
SIX = (*FOUR, "italian", "portuguese")


@dataclass(frozen=True)
class Task:
    """A task of mteb as this package knows it; `languages` are the subsets of its queries, if there are several."""

    name: str
    languages: tuple[str, ...] = ("default",)
    splits: tuple[str, ...] = ("test",)


# By the names that the paper's tables use. REAL-MM-RAG's tasks ask the queries of rephrase level 3.
BENCHMARKS: dict[str, dict[str, Task]] = {
    "vidore-v1": {
        "ArxivQA": Task("VidoreArxivQARetrieval"),
        "DocVQA": Task("VidoreDocVQARetrieval"),
        "InfoVQA": Task("VidoreInfoVQARetrieval"),
        "TabFQuAD": Task("VidoreTabfquadRetrieval"),
        "TAT-DQA": Task("VidoreTatdqaRetrieval"),
        "Shift Project": Task("VidoreShiftProjectRetrieval"),
        "Synthetic AI": Task("VidoreSyntheticDocQAAIRetrieval"),
        "Synthetic Energy": Task("VidoreSyntheticDocQAEnergyRetrieval"),
        "Synthetic Government": Task("VidoreSyntheticDocQAGovernmentReportsRetrieval"),
        "Synthetic Healthcare": Task("VidoreSyntheticDocQAHealthcareIndustryRetrieval"),
    },
    "vidore-v2": {
        "ESG Reports": Task("Vidore2ESGReportsRetrieval", FOUR),
        "Biomedical Lectures": Task("Vidore2BioMedicalLecturesRetrieval", FOUR),
        "Economics Reports": Task("Vidore2EconomicsReportsRetrieval", FOUR),
        "ESG Reports (Human)": Task("Vidore2ESGReportsHLRetrieval"),
    },
    "real-mm-rag": {
        "FinReport": Task("RealMMRAGFinReportRetrieval"),
        "FinSlides": Task("RealMMRAGFinSlidesRetrieval"),
        "TechReport": Task("RealMMRAGTechReportRetrieval"),
        "TechSlides": Task("RealMMRAGTechSlidesRetrieval"),
    },
    # Not in the paper: newer, and only its public half, which can be downloaded.
    "vidore-v3": {
        "Finance (English)": Task("Vidore3FinanceEnRetrieval", SIX),
        "Finance (French)": Task("Vidore3FinanceFrRetrieval", SIX),
        "Industrial": Task("Vidore3IndustrialRetrieval", SIX),
        "Computer Science": Task("Vidore3ComputerScienceRetrieval", SIX),
        "Pharmaceuticals": Task("Vidore3PharmaceuticalsRetrieval", SIX),
        "Human Resources": Task("Vidore3HrRetrieval", SIX),
        "Physics": Task("Vidore3PhysicsRetrieval", SIX),
        "Energy": Task("Vidore3EnergyRetrieval", SIX),
    },
}
PAPER = "paper"  # all of the paper's suites, in one word
PAPER_SUITES = ("vidore-v1", "vidore-v2", "real-mm-rag")


def load_task(name: str) -> Any:
    """One of mteb's tasks."""
    try:
        import mteb
    except ImportError as error:
        raise AnchorFoldError("the benchmarks need mteb: pip install 'anchorfold[eval]'.") from error
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise AnchorFoldError(
            f"mteb {mteb.__version__} has no task {name}: install the version that has it."
        ) from error


def check_task(task: Any, known: Task) -> None:
    """Raise where mteb's task has other splits or languages than ours: its figures would mean something else."""
    metadata = task.metadata
    if tuple(metadata.eval_splits) != known.splits:
        raise AnchorFoldError(f"mteb evaluates {metadata.name} on {metadata.eval_splits}, not on {list(known.splits)}.")
    if set(task.hf_subsets) != set(known.languages):
        raise AnchorFoldError(f"mteb's {metadata.name} has {task.hf_subsets}, not {list(known.languages)}.")


@dataclass(frozen=True)
class TaskPages:
    """The pages of a task: for each split a table with the columns `id` and `image`."""

    task: str
    dataset: Mapping[str, Any]
    tables: Mapping[str, Any]

    def __call__(self, pixels: int) -> Iterator[Unrendered]:
        """Split by split, in the data set's order and at its own size."""
        for split, table in self.tables.items():
            for number, page in enumerate(table["id"]):
                yield f"{split}/{page}", partial(row_image, table, number)

    def origin(self) -> dict[str, Any]:
        """A data set's revision is a digest of its content."""
        pages = [f"{split}/{page}" for split, table in self.tables.items() for page in table["id"]]
        return {"task": self.task, "data set": dict(self.dataset), "pages": digest_of(pages)}


def task_corpus(task: Any, name: str, benchmark: str) -> Corpus:
    """A task of mteb as a corpus: every page once, the queries of all its languages."""
    try:
        task.load_data()
    except (ConnectionError, OSError) as error:
        raise AnchorFoldError(f"{task.metadata.name} cannot be downloaded: {str(error).splitlines()[0]}.") from error
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    queries: list[Query] = []
    tables: dict[str, Any] = {}
    for subset in task.dataset:
        for split in task.metadata.eval_splits:
            data = task.dataset[subset][split]
            tables.setdefault(split, data["corpus"])
            for row in data["queries"]:
                grades = data["relevant_docs"].get(row["id"], {})
                relevant = {f"{split}/{page}": int(g) for page, g in grades.items() if int(g) > 0}
                if relevant:
                    queries.append(Query(f"{subset}/{split}/{row['id']}", row["text"], relevant, subset))
    pages = TaskPages(task.metadata.name, dict(task.metadata.dataset), tables)
    return Corpus(name, pages, tuple(queries), benchmark)


def row_image(rows: Any, number: int) -> Image.Image:
    """The page image of one row of a data set."""
    image: Image.Image = rows[number]["image"]
    return image.convert("RGB")


def find_corpora(source: str) -> list[Corpus] | None:
    """All data sets of a benchmark (`paper` is three of them), or the one of that task; None if it is neither."""
    if source == PAPER:
        return [corpus for suite in PAPER_SUITES for corpus in find_corpora(suite) or []]
    if source in BENCHMARKS:
        return [known_corpus(known, name, source) for name, known in BENCHMARKS[source].items()]
    for benchmark, tasks in BENCHMARKS.items():
        for name, known in tasks.items():
            if source == known.name:
                return [known_corpus(known, name, benchmark)]
    return None


def known_corpus(known: Task, name: str, benchmark: str) -> Corpus:
    """A data set of a benchmark, if mteb still means the same by it."""
    task = load_task(known.name)
    check_task(task, known)
    return task_corpus(task, name, benchmark)
