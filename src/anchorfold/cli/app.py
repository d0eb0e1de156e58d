"""`anchorfold`: the commands, and how their errors, notes and results look."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

import typer
from rich.console import Console

from anchorfold import __version__
from anchorfold.errors import AnchorFoldError

EPILOG = "Exit codes: 0 done; 1 could not be done; 2 wrong usage; 3 done, but some files were skipped; 130 interrupted."

app = typer.Typer(
    name="anchorfold",
    help="Visual document search, 5 to 20 times smaller, without losing the answers.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"anchorfold {__version__}")
        raise typer.Exit


@app.callback()
def common(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Say on standard error what goes on inside."),
) -> None:
    """Visual document search, 5 to 20 times smaller, without losing the answers.

    \b
    anchorfold index ./reports --to my.index           make or update an index of PDFs and images
    anchorfold search my.index "net revenue by region" the best pages
    anchorfold info my.index                           what it holds, and how much smaller it is
    """
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        logging.getLogger("anchorfold").addHandler(handler)
        logging.getLogger("anchorfold").setLevel(logging.DEBUG)


def quiet_libraries() -> None:
    """Suppress progress bars and log messages of other libraries."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs two lines per retry


def note(message: Any, *_: Any, **__: Any) -> None:
    """A warning as one line."""
    err.print(f"note: {message}", style="yellow", markup=False)


def fail(message: str) -> None:
    """An error as one line."""
    err.print(f"anchorfold: {' '.join(message.split())}", style="red", markup=False)


def main() -> None:
    """Run a command; everything that a user can mend is one line and a non-zero exit."""
    from anchorfold.cli import (  # noqa: F401
        ablate_command,
        agreement_command,
        bench_command,
        calibrate_command,
        check_command,
        compress_command,
        demo_command,
        describe_command,
        eval_command,
        explain_command,
        index_command,
        manage_commands,
        mcp_command,
        methods_command,
        models_command,
        report_command,
        search_command,
        serve_command,
    )

    warnings.showwarning = note
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        fail("interrupted.")
        sys.exit(130)
    except (AnchorFoldError, FileNotFoundError, ConnectionError, PermissionError, ValueError) as error:
        fail(str(error))
        sys.exit(1)
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        sys.exit(1)
