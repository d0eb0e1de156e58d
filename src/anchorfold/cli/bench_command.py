"""`anchorfold bench`: latency of compression, and recall of candidate search."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, out
from anchorfold.cli.options import (
    AllowPickle,
    AsJson,
    Bidirectional,
    Calibration,
    Device,
    IndexLocation,
    Methods,
    Model,
    ModelOverride,
    ResultsPath,
    Settings,
    TrustRemoteCode,
)
from anchorfold.cli.printing import print_report_table, print_table
from anchorfold.errors import AnchorFoldError

bench = typer.Typer(help="Measure latency and candidate recall.", no_args_is_help=True)
app.add_typer(bench, name="bench", rich_help_panel="Research")


@bench.command("efficiency")
def efficiency_command(
    corpus: Annotated[str | None, typer.Option(help="Directory with pdfs/ and queries.jsonl, or a benchmark. Default: vidore-v2 as in the paper; the sample documents for nano.")] = None,  # noqa: E501
    model: Model = DEFAULT_MODEL,
    ratio: Annotated[float, typer.Option(help="Fraction of vectors to keep per page, in (0, 1].")] = 0.1,
    methods: Methods = "all",
    pages: Annotated[int, typer.Option(help="Number of timed pages.", min=1)] = 200,
    warm_up: Annotated[int, typer.Option(help="Number of warm-up pages.", min=0)] = 30,
    passes: Annotated[int, typer.Option(help="Number of passes over the pages.", min=1)] = 3,
    settings: Settings = None,
    calibration: Calibration = None,
    output: ResultsPath = Path("results"),
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Measure indexing latency per page with the protocol of appendix E.

    The protocol: 30 warm-up pages, then three passes over 200 pages with batch size 1, in one process per method.
    Encoding, attention capture and compression are timed separately.

    \b
    Examples
      anchorfold bench efficiency --model vidore/colpali-v1.3-hf
      anchorfold bench efficiency --corpus ./my-corpus
    """
    from anchorfold.demo.sample_documents import write_evaluation
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.efficiency import EFFICIENCY_FILE, run_in_subprocess
    from anchorfold.evaluation.methods import choose_methods
    from anchorfold.evaluation.run import slug
    from anchorfold.evaluation.run_folder import write_json
    from anchorfold.evaluation.tables import efficiency_table

    options = {"device": device, "trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
    options["bidirectional"] = bidirectional
    rows: list[dict[str, Any]] = []
    header: dict[str, Any] = {}
    with err.status("preparing pages") as status, TemporaryDirectory() as folder:
        if corpus is None and model == DEFAULT_MODEL:
            corpus = str(write_evaluation(folder))
        corpus = corpus or "vidore-v2"
        if find_corpora(corpus) is None:
            local_corpus(corpus)  # reports a wrong corpus before the first measurement
        for method in choose_methods(methods, [ratio]):
            status.update(f"timing {method.label}")
            job = {
                "model": model, "options": options, "corpus": corpus, "method": asdict(method),
                "settings": settings,
                "sizes": (pages, warm_up, passes), "calibration": calibration, "store": f"{folder}/calibrated.json",
            }  # fmt: skip
            latency, run_header = run_in_subprocess(job)
            rows.append(asdict(latency))
            calibrated_on = run_header.pop("calibrated_on") or header.get("calibrated_on", "")
            header = {**run_header, "calibrated_on": calibrated_on}
    result = {**header, "corpus": Path(corpus).name, "ratio": ratio, "warm_up": warm_up, "passes": passes, "rows": rows}
    print_report_table(efficiency_table(result))
    path = output / f"{slug(Path(header['model']).name)}-{header['fingerprint'][:8]}" / EFFICIENCY_FILE
    write_json(path, result)
    out.print(f"wrote {path}", markup=False)


@bench.command("agreement")
def agreement_command(
    index: IndexLocation,
    queries: Annotated[Path, typer.Argument(help='File with one query per line, or JSON lines with "text".', show_default=False)],  # noqa: E501
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Results per query to compare.")] = 10,
    overlap: Annotated[float, typer.Option(min=0, max=1, help="Required fraction of common results.")] = 0.98,
    model: ModelOverride = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare candidate search with an exhaustive scan, and find the number of candidates needed.

    \b
    Example
      anchorfold bench agreement my.index queries.jsonl --overlap 0.99
    """
    from anchorfold.indexes.index import Index
    from anchorfold.retrieval.agreement import agreement
    from anchorfold.retrieval.embedded_store import EmbeddedStore

    texts = read_texts(queries)
    opened = Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if not isinstance(opened.store, EmbeddedStore):
        raise AnchorFoldError(f"{opened.location} is not a directory: this command compares embedded indexes only.")
    scanner = opened.store.pages.newest_scanner()
    if scanner.candidates is None:
        pages = int(scanner.live.allowed.sum())
        raise AnchorFoldError(f"{index} has {pages:,} pages and no candidate stage: every search scores all pages.")
    figures = agreement(scanner, opened.encode_queries(texts), top_k)
    enough = next((f.candidates for f in figures if f.overlap >= overlap), None)
    if as_json:
        print(json.dumps({"enough": enough, "figures": [asdict(f) for f in figures]}))
        return
    rows = [
        (f"{f.candidates:,}", f"{f.overlap:.2%}", f"{f.first:.2%}", f"{f.seconds / f.seconds_of_all:.3f}")
        for f in figures
    ]
    columns = [">candidates", f">common in top {top_k}", ">same first page", ">time / full scan"]
    print_table(columns, rows, f"{index}, {len(texts):,} queries")
    if enough is None:
        out.print(f"No number of candidates reaches {100 * overlap:g} %: use --exact.")
    else:
        command = f"anchorfold search {index} --candidates {enough}"
        out.print(f"{enough:,} candidates reach {100 * overlap:g} %: {command}", markup=False)


def read_texts(path: Path) -> list[str]:
    """Read queries from a file of plain lines, or of JSON lines with "text"."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        texts = [json.loads(line)["text"] if line.startswith("{") else line for line in lines]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise AnchorFoldError(f'{path} has a line that is neither a query nor JSON with "text" ({error}).') from error
    except OSError as error:
        raise AnchorFoldError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if not texts:
        raise AnchorFoldError(f"{path} contains no query.")
    return texts
