"""Benchmarks as mteb tasks: official test splits, languages and query variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from anchorfold.errors import AnchorFoldError, first_line
from anchorfold.evaluation.corpus import Corpus, LazyPage, Query
from anchorfold.evaluation.run_folder import digest_of

FOUR = ("english", "french", "german", "spanish")
SIX = (*FOUR, "italian", "portuguese")


@dataclass(frozen=True)
class BenchmarkTask:
    """A task of mteb; `languages` are the subsets of its queries."""

    name: str
    languages: tuple[str, ...] = ("default",)
    splits: tuple[str, ...] = ("test",)


# Named as in the paper's tables. REAL-MM-RAG uses the queries of rephrase level 3.
BENCHMARKS: dict[str, dict[str, BenchmarkTask]] = {
    "vidore-v1": {
        "ArxivQA": BenchmarkTask("VidoreArxivQARetrieval"),
        "DocVQA": BenchmarkTask("VidoreDocVQARetrieval"),
        "InfoVQA": BenchmarkTask("VidoreInfoVQARetrieval"),
        "TabFQuAD": BenchmarkTask("VidoreTabfquadRetrieval"),
        "TAT-DQA": BenchmarkTask("VidoreTatdqaRetrieval"),
        "Shift Project": BenchmarkTask("VidoreShiftProjectRetrieval"),
        "Synthetic AI": BenchmarkTask("VidoreSyntheticDocQAAIRetrieval"),
        "Synthetic Energy": BenchmarkTask("VidoreSyntheticDocQAEnergyRetrieval"),
        "Synthetic Government": BenchmarkTask("VidoreSyntheticDocQAGovernmentReportsRetrieval"),
        "Synthetic Healthcare": BenchmarkTask("VidoreSyntheticDocQAHealthcareIndustryRetrieval"),
    },
    "vidore-v2": {
        "ESG Reports": BenchmarkTask("Vidore2ESGReportsRetrieval", FOUR),
        "Biomedical Lectures": BenchmarkTask("Vidore2BioMedicalLecturesRetrieval", FOUR),
        "Economics Reports": BenchmarkTask("Vidore2EconomicsReportsRetrieval", FOUR),
        "ESG Reports (Human)": BenchmarkTask("Vidore2ESGReportsHLRetrieval"),
    },
    "real-mm-rag": {
        "FinReport": BenchmarkTask("RealMMRAGFinReportRetrieval"),
        "FinSlides": BenchmarkTask("RealMMRAGFinSlidesRetrieval"),
        "TechReport": BenchmarkTask("RealMMRAGTechReportRetrieval"),
        "TechSlides": BenchmarkTask("RealMMRAGTechSlidesRetrieval"),
    },
    # Not in the paper; only the public half can be downloaded.
    "vidore-v3": {
        "Finance (English)": BenchmarkTask("Vidore3FinanceEnRetrieval", SIX),
        "Finance (French)": BenchmarkTask("Vidore3FinanceFrRetrieval", SIX),
        "Industrial": BenchmarkTask("Vidore3IndustrialRetrieval", SIX),
        "Computer Science": BenchmarkTask("Vidore3ComputerScienceRetrieval", SIX),
        "Pharmaceuticals": BenchmarkTask("Vidore3PharmaceuticalsRetrieval", SIX),
        "Human Resources": BenchmarkTask("Vidore3HrRetrieval", SIX),
        "Physics": BenchmarkTask("Vidore3PhysicsRetrieval", SIX),
        "Energy": BenchmarkTask("Vidore3EnergyRetrieval", SIX),
    },
}
PAPER = "paper"  # name for all suites of the paper
SMOKE = "smoke"  # name for the smallest data set of the paper: 70 pages, 280 queries
SMOKE_TASK = "VidoreTabfquadRetrieval"
PAPER_SUITES = ("vidore-v1", "vidore-v2", "real-mm-rag")


def load_task(name: str) -> Any:
    """Load a task of mteb."""
    try:
        import mteb
    except ImportError as error:
        raise AnchorFoldError("benchmarks require mteb: pip install 'anchorfold[eval]'.") from error
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise AnchorFoldError(
            f"mteb {mteb.__version__} has no task {name}: install the version that has it."
        ) from error


def check_task(task: Any, known: BenchmarkTask) -> None:
    """Raise if the splits or languages of mteb's task differ from the paper's."""
    metadata = task.metadata
    if tuple(metadata.eval_splits) != known.splits:
        raise AnchorFoldError(f"mteb evaluates {metadata.name} on {metadata.eval_splits}, not on {list(known.splits)}.")
    if set(task.hf_subsets) != set(known.languages):
        raise AnchorFoldError(f"mteb's {metadata.name} has {task.hf_subsets}, not {list(known.languages)}.")


@dataclass(frozen=True)
class TaskPages:
    """Pages of a task: one table with the columns `id` and `image` per split."""

    task: str
    dataset: Mapping[str, Any]
    tables: Mapping[str, Any]

    def __call__(self, pixels: int) -> Iterator[LazyPage]:
        """Yield pages split by split, in the data set's order and resolution."""
        for split, table in self.tables.items():
            for number, page in enumerate(table["id"]):
                yield f"{split}/{page}", partial(row_image, table, number)

    def origin(self) -> dict[str, Any]:
        """Return the data set's revision and a digest of the page ids."""
        pages = [f"{split}/{page}" for split, table in self.tables.items() for page in table["id"]]
        return {"task": self.task, "data set": dict(self.dataset), "pages": digest_of(pages)}


def task_corpus(task: Any, name: str, benchmark: str) -> Corpus:
    """Convert a task of mteb to a corpus with the queries of all languages."""
    try:
        task.load_data()
    except (ConnectionError, OSError) as error:
        raise AnchorFoldError(f"{task.metadata.name} cannot be downloaded: {first_line(error)}.") from error
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
    """Return the page image of a row."""
    image: Image.Image = rows[number]["image"]
    return image.convert("RGB")


def find_corpora(source: str) -> list[Corpus] | None:
    """Return the corpora of a benchmark (`paper`: three benchmarks) or of one task; None for other names."""
    if source == SMOKE:
        return find_corpora(SMOKE_TASK)
    if source == PAPER:
        return [corpus for suite in PAPER_SUITES for corpus in find_corpora(suite) or []]
    if source in BENCHMARKS:
        return [known_corpus(known, name, source) for name, known in BENCHMARKS[source].items()]
    for benchmark, tasks in BENCHMARKS.items():
        for name, known in tasks.items():
            if source == known.name:
                return [known_corpus(known, name, benchmark)]
    return None


def known_corpus(known: BenchmarkTask, name: str, benchmark: str) -> Corpus:
    """Load a data set of a benchmark after checking mteb's definition."""
    task = load_task(known.name)
    check_task(task, known)
    return task_corpus(task, name, benchmark)
