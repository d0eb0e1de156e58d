"""mkdocs hook: generate the command-line reference from the help of the commands."""

from __future__ import annotations

from typing import Any

import typer
from mkdocs.structure.files import File, Files

from anchorfold.cli.app import app, load_commands

PAGE = "reference/cli.md"


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, PAGE, content=reference()))
    return files


def reference() -> str:
    """Return Markdown with the usage, options and help of every command."""
    load_commands()
    root = typer.main.get_command(app)
    parts = ["# Command line", ""]
    for path, command in commands(root, ["anchorfold"]):
        context = command.make_context(" ".join(path), [], resilient_parsing=True)
        parts += [f"## {' '.join(path)}", "", (command.help or "").replace("\b\n", "\n").strip(), ""]
        parts += [f"    {context.get_usage().removeprefix('Usage: ')}", "", "| option | description |", "|---|---|"]
        for parameter in command.params:
            name, text = parameter.get_help_record(context) or (parameter.name, "")
            parts.append(f"| `{name.replace('|', '/')}` | {text.replace('|', '/')} |")
        parts.append("")
    return "\n".join(parts)


def commands(command: Any, path: list[str]) -> Any:
    """Yield `(path, command)` of all leaf commands."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from commands(child, [*path, name])
    else:
        yield path, command
