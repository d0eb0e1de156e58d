"""`anchorfold bench agreement`: does the fast path of a large index find what a scan of everything finds?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anchorfold.cli.app import out
from anchorfold.cli.bench_command import bench
from anchorfold.cli.options import AllowPickle, Device, ModelPlace, TrustRemoteCode
from anchorfold.cli.printing import table
from anchorfold.errors import AnchorFoldError


@bench.command("agreement")
def agreement_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    queries: Annotated[Path, typer.Argument(help='A file with a query a line, or JSON lines with a "text".', show_default=False)],  # noqa: E501
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Pages of an answer.")] = 10,
    overlap: Annotated[float, typer.Option("--overlap", min=0, max=1, help="The share of these pages that should agree.")] = 0.98,  # noqa: E501
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    model: ModelPlace = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:  # fmt: skip
    """Compare answers from candidates with those from every page, and find how many candidates are enough.

    \b
    Example
      anchorfold bench agreement my.index queries.jsonl --overlap 0.99
    """
    from anchorfold.index import Index
    from anchorfold.index.agreement import agreement

    texts = read_texts(queries)
    opened = Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    scanner = opened.scanner()
    if scanner.candidates is None:
        raise AnchorFoldError(f"{index} has {int(scanner.live.allowed.sum()):,} pages and no candidate stage: every search scores all of them.")  # fmt: skip  # noqa: E501
    figures = agreement(scanner, opened.encode_queries(texts), top)
    enough = next((f.candidates for f in figures if f.overlap >= overlap), None)
    if as_json:
        print(json.dumps({"enough": enough, "figures": [asdict(f) for f in figures]}))
        return
    rows = [(f"{f.candidates:,}", f"{100 * f.overlap:.2f} %", f"{100 * f.first:.2f} %", f"{f.seconds / f.seconds_of_all:.3f}") for f in figures]  # fmt: skip  # noqa: E501
    heads = ("candidates", f"first {top} agree", "first page agrees", "time / scan of all")
    table([(head, "right") for head in heads], rows, f"{index}, {len(texts):,} queries")
    if enough is None:
        out.print(f"no number of candidates reaches {100 * overlap:g} %: use --exact.")
    else:
        out.print(f"{enough:,} candidates are enough for {100 * overlap:g} %: anchorfold search {index} --candidates {enough}", markup=False)  # fmt: skip  # noqa: E501


def read_texts(path: Path) -> list[str]:
    """Queries of a file: plain lines, or JSON lines with a `text`."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        texts = [json.loads(line)["text"] if line.startswith("{") else line for line in lines]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise AnchorFoldError(
            f'{path} holds a line that is neither a query nor JSON with a "text" ({error}).'
        ) from error
    except OSError as error:
        raise AnchorFoldError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if not texts:
        raise AnchorFoldError(f"{path} holds no query.")
    return texts
