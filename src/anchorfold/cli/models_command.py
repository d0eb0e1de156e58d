"""`anchorfold models`: the checkpoints that can be loaded, and what is known of each."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from anchorfold.cli.app import app, out
from anchorfold.cli.printing import table

HEADS = [
    ("model", "left"), ("family", "left"), ("dim", "right"), ("visual tokens", "right"), ("window, K", "right"),
    ("settings from", "left"), ("attention", "left"), ("licence", "left"),
]  # fmt: skip


@app.command("models", rich_help_panel="Documents")
def models_command(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """List the published models that --model takes; folders of these families, and any MultiVectorEncoder, work too.

    \b
    Example
      anchorfold models --json
    """
    from anchorfold.backbones.catalogue import KNOWN

    if as_json:
        entries = []
        for model in KNOWN:
            settings = model.settings()
            layers = {"window": settings.window, "sap_window": settings.sap_window, "steps": settings.steps}
            entries.append({**asdict(model), **layers, "settings_from": model.source()})
        print(json.dumps(entries))
        return
    rows = []
    for model in KNOWN:
        settings = model.settings()
        window = f"{settings.window[0]}-{settings.window[1]}, {settings.steps}"
        attention = "causal" if model.causal else "bidirectional"
        tokens = f"{model.visual_tokens:,}" if model.visual_tokens else ""
        rows.append((model.name, model.family, model.dim, tokens, window, model.source(), attention, model.licence))
    table(HEADS, rows)
    out.print("Compressors that listen to attention want a bidirectional model.")
