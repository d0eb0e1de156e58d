"""`anchorfold bench efficiency`: the paper's latency protocol."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, out
from anchorfold.cli.options import Device, Methods, Model, TrustRemoteCode
from anchorfold.cli.printing import table

bench = typer.Typer(help="Measure what compression costs.", no_args_is_help=True)
app.add_typer(bench, name="bench", rich_help_panel="Science")


@bench.callback()
def common() -> None:
    """Measure what compression costs."""


@bench.command("efficiency")
def efficiency_command(
    corpus: Annotated[str | None, typer.Option("--corpus", help="A folder with pdfs/ and queries.jsonl, or a benchmark. Default: vidore-v2 as in the paper; the sample documents for nano.")] = None,  # noqa: E501
    model: Model = DEFAULT_MODEL,
    ratio: Annotated[float, typer.Option(help="The budget.")] = 0.1,
    methods: Methods = "all",
    pages: Annotated[int, typer.Option(help="Pages of the fixed sample.", min=1)] = 200,
    warm_up: Annotated[int, typer.Option(help="Pages before the clock runs.", min=0)] = 30,
    passes: Annotated[int, typer.Option(help="Passes over the sample.", min=1)] = 3,
    to: Annotated[Path | None, typer.Option("--to", help="Write the figures as JSON too.")] = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:  # fmt: skip
    """Appendix E as written: 30 warm-up pages, three passes over 200 pages, a process a method.

    \b
    Examples
      anchorfold bench efficiency --model vidore/colpali-v1.3-hf
      anchorfold bench efficiency --corpus ./my-corpus
    """

    from anchorfold.demo.corpus import write_evaluation
    from anchorfold.evaluation import paper
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.efficiency import run_apart
    from anchorfold.evaluation.methods import choose_methods

    options = {"device": device, "trust_remote_code": trust_remote_code}
    found = []
    with err.status("preparing pages") as status, TemporaryDirectory() as folder:
        if corpus is None and model == DEFAULT_MODEL:
            corpus = str(write_evaluation(folder))
        corpus = corpus or "vidore-v2"
        if find_corpora(corpus) is None:
            local_corpus(corpus)  # says what is wrong with it before a minute is spent
        for method in choose_methods(methods, [ratio]):
            status.update(f"timing {method.label}")
            found.append(run_apart(model, corpus, method, (pages, warm_up, passes), options))
    full = found[0].total
    reported = {r["method"]: r["index_over_full"] for r in paper.table("efficiency")}
    rows = [
        (f.method, f"{f.compression:.2f} +- {f.compression_sd:.2f}", f"{f.total:.1f} +- {f.total_sd:.1f}",
         f"{f.p95:.1f}", f"{f.total / full:.3f}", reported.get(f.method.split("@")[0], ""), f"{f.megabytes:.0f}")
        for f in found
    ]  # fmt: skip
    heads = ("compression, ms", "total, ms", "P95, ms", "index / full", "paper, ColQwen2.5", "peak MB")
    table([("method", "left"), *((h, "right") for h in heads)], rows, f"{model}, {pages} pages, {passes} passes")
    if to is not None:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps([asdict(f) for f in found], indent=1))
        out.print(f"wrote {to}", markup=False)
