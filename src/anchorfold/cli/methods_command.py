"""`anchorfold methods`: the compressors that are there, ours and those of other packages."""

from __future__ import annotations

from anchorfold.cli.app import app
from anchorfold.cli.printing import table


@app.command("methods", rich_help_panel="Documents")
def methods_command() -> None:
    """List the compressors that --method takes.

    \b
    Example
      anchorfold methods
    """
    from anchorfold.compressors import COMPRESSORS

    rows = []
    for name in COMPRESSORS.names():
        kind = COMPRESSORS[name]
        summary = (kind.__doc__ or "").strip().splitlines()
        needs = [
            *(["a model trained for it"] if kind.trained else []),
            *([f"{kind.calibration_pages} held-out pages"] if kind.calibration_pages else []),
        ]
        rows.append((name, kind.title or name, ", ".join(needs), summary[0] if summary else ""))
    table([("name", "left"), ("title", "left"), ("needs first", "left"), ("what it does", "left")], rows)
