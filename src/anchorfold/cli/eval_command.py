"""`anchorfold eval`: every method and ratio from one encoding pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, out, quiet_libraries
from anchorfold.cli.options import Bidirectional, Device, Documents, Methods, Model, TrustRemoteCode, numbers
from anchorfold.cli.printing import table

DEFAULT_RATIOS = "0.5,0.2,0.1,0.05"


@app.command("eval", rich_help_panel="Science")
def eval_command(
    corpus: Annotated[str, typer.Argument(help="vidore-v1, vidore-v2, real-mm-rag, or a folder with pdfs/ and queries.jsonl.", show_default=False)],  # noqa: E501
    model: Model = DEFAULT_MODEL,
    methods: Methods = "all",
    ratios: Annotated[str, typer.Option(help="Ratios with commas between.")] = DEFAULT_RATIOS,
    caps: Annotated[str, typer.Option(help="Fixed numbers of vectors a page, such as 128.")] = "",
    documents: Documents = None,
    to: Annotated[Path | None, typer.Option("--to", help="Where vectors and results go. Default: results/CORPUS-MODEL.")] = None,  # noqa: E501
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Measure every method at every ratio: NDCG@5, what is kept of it and of the score; the paper's figures beside.

    Each page is encoded once. A run that was interrupted goes on where it stopped. A benchmark's data sets come from
    the hub through mteb, and their macro-average is printed last.

    \b
    Examples
      anchorfold eval ./my-corpus
      anchorfold eval vidore-v2 --model vidore/colpali-v1.3-hf
      anchorfold eval ./my-corpus --methods anchorfold,sap --ratios 0.2,0.05
    """
    from anchorfold.backbones import load
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.methods import choose_methods
    from anchorfold.evaluation.results import RESULTS_FILE, macro_average
    from anchorfold.evaluation.run import evaluate, results_folder

    quiet_libraries()
    corpora = find_corpora(corpus) or [local_corpus(corpus, documents)]
    chosen = choose_methods(methods, numbers(ratios, float), numbers(caps, int))
    retriever = load(model, device=device, trust_remote_code=trust_remote_code, bidirectional=bidirectional)
    base = to or results_folder(Path(corpus).name, retriever)
    sets = []
    for found in corpora:
        folder = base / found.name.replace(" ", "-") if len(corpora) > 1 else base
        with err.status("encoding") as status:
            rows = evaluate(found, retriever, chosen, folder, status.update)
        show(rows, f"{found.name}: {len(found.queries):,} queries, {retriever.name}")
        out.print(f"wrote {folder / RESULTS_FILE}", markup=False)
        sets.append(rows)
    if len(sets) > 1:
        show(macro_average(sets, corpus, retriever.family), f"{corpus}: macro-average over {len(sets)} data sets")


def show(rows: Any, title: str) -> None:
    """The tables of a report, in the terminal."""
    from anchorfold.evaluation.report import method_tables

    for each in method_tables([vars(row) for row in rows], title):
        columns = [(head, "right" if i else "left") for i, head in enumerate(each.heads)]
        table(columns, each.lines, each.title)
