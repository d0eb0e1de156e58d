"""`anchorfold bench efficiency`: the paper's latency protocol."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.cli.app import app, err, out
from anchorfold.cli.options import AllowPickle, Bidirectional, Calibration, Device, Methods, Model, TrustRemoteCode
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
    calibration: Calibration = None,
    to: Annotated[Path, typer.Option("--to", help="Where figures go, a folder a model in it.")] = Path("results"),
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    bidirectional: Bidirectional = None,
) -> None:  # fmt: skip
    """Appendix E's protocol: 30 warm-up pages, three passes over 200 pages one at a time, a process a method.

    Compression is what a method does after the projection, and what the attention tap does for it inside the layers.

    \b
    Examples
      anchorfold bench efficiency --model vidore/colpali-v1.3-hf
      anchorfold bench efficiency --corpus ./my-corpus
    """
    from anchorfold.demo.corpus import write_evaluation
    from anchorfold.evaluation.benchmarks import find_corpora
    from anchorfold.evaluation.corpus import local_corpus
    from anchorfold.evaluation.efficiency import EFFICIENCY_FILE, run_apart
    from anchorfold.evaluation.methods import choose_methods
    from anchorfold.evaluation.run import slug
    from anchorfold.evaluation.run_folder import write_json
    from anchorfold.evaluation.validation import efficiency_table

    options = {
        "device": device,
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
        "bidirectional": bidirectional,
    }
    rows: list[dict[str, Any]] = []
    header: dict[str, Any] = {}
    with err.status("preparing pages") as status, TemporaryDirectory() as folder:
        if corpus is None and model == DEFAULT_MODEL:
            corpus = str(write_evaluation(folder))
        corpus = corpus or "vidore-v2"
        if find_corpora(corpus) is None:
            local_corpus(corpus)  # says what is wrong with it before a minute is spent
        for method in choose_methods(methods, [ratio]):
            status.update(f"timing {method.label}")
            job = {
                "model": model, "options": options, "corpus": corpus, "method": asdict(method),
                "sizes": (pages, warm_up, passes), "calibration": calibration, "store": f"{folder}/calibrated.json",
            }  # fmt: skip
            latency, described = run_apart(job)
            rows.append(asdict(latency))
            calibrated_on = described.pop("calibrated_on") or header.get("calibrated_on", "")
            header = {**described, "calibrated_on": calibrated_on}
    result = {**header, "corpus": Path(corpus).name, "ratio": ratio, "warm_up": warm_up, "passes": passes, "rows": rows}
    shown = efficiency_table(result)
    table([(h, "right" if i else "left") for i, h in enumerate(shown.heads)], shown.lines, shown.title)
    out.print(shown.note, markup=False)
    path = to / f"{slug(Path(header['model']).name)}-{header['fingerprint'][:8]}" / EFFICIENCY_FILE
    write_json(path, result)
    out.print(f"wrote {path}", markup=False)
