"""The `anchorfold` command: its options, messages and exit codes."""

from __future__ import annotations

import logging
import os
import pkgutil
import sys
import traceback
import warnings
from importlib import import_module
from typing import Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from anchorfold import __version__, cli
from anchorfold.errors import AnchorFoldError

SUMMARY = "Visual document search with compressed multi-vector embeddings."
EPILOG = (
    "Exit codes: 0 success; 1 error or no results; 2 wrong usage; 3 success, but some files were skipped; "
    "70 internal error; 130 interrupted."
)
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
COMMANDS = (
    "demo", "index", "search", "similar", "serve", "info", "check", "remove", "metadata", "export", "explain",
    "compress", "mcp", "eval", "ablate", "calibrate", "bench", "report", "methods", "models", "size",
)  # fmt: skip


class OrderedGroup(TyperGroup):
    """Lists the commands in the order of use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return sorted(self.commands, key=lambda name: COMMANDS.index(name) if name in COMMANDS else len(COMMANDS))


app = typer.Typer(
    name="anchorfold",
    cls=OrderedGroup,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
logger = logging.getLogger("anchorfold")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"anchorfold {__version__}")
        raise typer.Exit


@app.callback(help=SUMMARY)
def common(
    _: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Print debug logs and tracebacks to stderr."),
) -> None:
    """Set up logging."""
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)


def load_commands() -> None:
    """Register all commands."""
    for module in pkgutil.iter_modules(cli.__path__, "anchorfold.cli."):
        import_module(module.name)


def quiet_libraries() -> None:
    """Suppress progress bars and log messages of other libraries."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs two lines per retry


def note(message: Any, *_: Any, **__: Any) -> None:
    """Print a warning as one line."""
    err.print(f"note: {message}", style="yellow", markup=False)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print an error as one line, in verbose mode after its traceback, and exit."""
    if logger.isEnabledFor(logging.DEBUG) and sys.exc_info()[0] is not None:
        traceback.print_exc()
    err.print(f"anchorfold: {' '.join(message.split())}", style="red", markup=False)
    sys.exit(code)


def main() -> None:
    """Run a command. Errors that users can fix are one line; other exceptions are reported as internal errors."""
    load_commands()
    warnings.showwarning = note
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        fail("interrupted.", 130)
    except AnchorFoldError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror}: {error.filename}" if error.strerror and error.filename else str(error))
    except Exception as error:
        where = "the traceback is above" if logger.isEnabledFor(logging.DEBUG) else "run `anchorfold -v ...` for the traceback"  # fmt: skip  # noqa: E501
        fail(f"internal error: {type(error).__name__}: {error}. This is a bug: {where}; please report it.", INTERNAL_ERROR)  # fmt: skip  # noqa: E501
