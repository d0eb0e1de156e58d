"""`anchorfold methods` and `anchorfold models`."""

from __future__ import annotations

import json
from dataclasses import asdict

from anchorfold.cli.app import app, out
from anchorfold.cli.options import AsJson
from anchorfold.cli.printing import print_table


@app.command("methods", rich_help_panel="Lists")
def methods_command() -> None:
    """List the compression methods.

    \b
    Example
      anchorfold methods
    """
    from anchorfold.compressors import COMPRESSORS

    rows = []
    for name in COMPRESSORS.names():
        kind = COMPRESSORS[name]
        requires = "a model trained for it" if kind.trained else ""
        if kind.calibration_pages:
            requires = f"{kind.calibration_pages} held-out pages"
        rows.append((name, kind.title or name, requires, (kind.__doc__ or "").strip().partition("\n")[0]))
    print_table(["name", "title", "requires", "description"], rows)


@app.command("models", rich_help_panel="Lists")
def models_command(as_json: AsJson = False) -> None:
    """List the published models.

    Local directories of these families and any MultiVectorEncoder of sentence-transformers work too.

    \b
    Example
      anchorfold models --json
    """
    from anchorfold.backbones.catalogue import KNOWN

    entries, rows = [], []
    for model in KNOWN:
        settings = model.layer_settings()
        layers = {name: getattr(settings, name, None) for name in ("window", "sap_window", "steps")}
        entries.append({**asdict(model), **layers, "settings_from": model.source()})
        window = f"{settings.window[0]}-{settings.window[1]}, {settings.steps}" if settings else ""
        tokens = f"{model.visual_tokens:,}" if model.visual_tokens else ""
        attention = "causal" if model.causal else "bidirectional"
        attention += " (--bidirectional)" if model.needs_option else ""
        dim = f"{model.dim}, down to {min(model.dims)}" if model.dims else f"{model.dim}"
        rows.append((model.name, model.family, dim, tokens, window, model.source(), attention, model.licence))
    if as_json:
        print(json.dumps(entries))
        return
    columns = ["model", "family", ">dim", ">visual tokens", ">window, K", "settings from", "attention", "license"]
    print_table(columns, rows)
    out.print("Compressors that read attention require bidirectional attention, or a graph for causal models.")
