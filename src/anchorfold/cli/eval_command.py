"""`anchorfold eval`: every method and ratio from one encoding pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anchorfold.cli.app import app, err, out, quiet_libraries
from anchorfold.cli.look import table

DEFAULT_RATIOS = "0.5,0.2,0.1,0.05"


@app.command("eval", rich_help_panel="Science")
def eval_command(
    corpus: Annotated[Path, typer.Argument(help="A folder with pdfs/ and queries.jsonl.", show_default=False)],
    model: Annotated[str, typer.Option(help="A model name or folder.")] = "nano",
    methods: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    ratios: Annotated[str, typer.Option(help="Ratios with commas between.")] = DEFAULT_RATIOS,
    caps: Annotated[str, typer.Option(help="Fixed numbers of vectors a page, such as 128.")] = "",
    to: Annotated[Path | None, typer.Option("--to", help="Where vectors and results go. Default: results/CORPUS-MODEL.")] = None,  # noqa: E501
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu.")] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Let the model run its own code.")] = False,  # noqa: E501
    bidirectional: Annotated[bool | None, typer.Option("--bidirectional/--causal", help="ColQwen2.5: without or with its causal mask.")] = None,  # noqa: E501
) -> None:  # fmt: skip
    """Measure every method at every ratio on a corpus of your own: NDCG@5, what is kept of it and of the score, bytes.

    Each page is encoded once. A run that was interrupted goes on where it stopped.

    \b
    Examples
      anchorfold eval ./my-corpus
      anchorfold eval ./my-corpus --model vidore/colpali-v1.3-hf --methods anchorfold,sap --ratios 0.2,0.05
    """
    from anchorfold.backbones import load
    from anchorfold.evaluation.collect import collect
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.measure import measure
    from anchorfold.evaluation.methods import FULL, TRAINING_FREE, choose_methods
    from anchorfold.evaluation.results import RESULTS_FILE, save, summarise

    quiet_libraries()
    found = local_corpus(corpus)
    names = TRAINING_FREE if methods == "all" else tuple(m.strip() for m in methods.split(",") if m.strip())
    chosen = choose_methods(names, numbers(ratios, float), numbers(caps, int))
    retriever = load(model, device=device, trust_remote_code=trust_remote_code, bidirectional=bidirectional)
    folder = to or Path("results") / f"{found.name}-{retriever.name.replace('/', '-').strip('.-')}"
    with err.status("encoding") as status:
        collected = collect(found, retriever, chosen, folder, lambda n: status.update(f"encoding: {n:,} pages"))
        status.update("encoding queries")
        encoded = retriever.encode_queries([q.text for q in found.queries])
        labels = [m.label for m in chosen]
        measured = measure(collected, found.queries, encoded, labels, lambda n: status.update(f"scoring: {n}"))
    rows = summarise(measured, chosen, found.queries, found.name, retriever.family)
    about = {"corpus": found.name, "model": retriever.name, "fingerprint": retriever.fingerprint,
             "pages": len(collected.pages),
             "queries_asked": len(found.queries), "full_vectors": measured[FULL].vectors}  # fmt: skip
    save(folder / RESULTS_FILE, about, rows, measured)
    show(rows, f"{found.name}: {len(collected.pages):,} pages, {len(found.queries):,} queries, {retriever.name}")
    out.print(f"wrote {folder / RESULTS_FILE}", markup=False)


def numbers(text: str, kind: type) -> list[Any]:
    """Numbers with commas between."""
    from anchorfold.errors import AnchorFoldError

    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise AnchorFoldError(f"{text!r} should be numbers with commas between.") from error


def show(rows: Any, title: str) -> None:
    """A line a method, with the paper's figure where it has the same cell."""
    from anchorfold.evaluation.results import HEADS, cells

    columns = [(head, "left" if head == "method" else "right") for head in HEADS]
    table(columns, [cells(vars(row)) for row in rows], title)
