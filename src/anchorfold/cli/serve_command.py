"""`anchorfold serve`."""

from __future__ import annotations

import socket
import threading
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorfold.cli.app import app, out, quiet_libraries
from anchorfold.cli.options import CLUSTER, AllowPickle, Device, ModelPlace, TrustRemoteCode
from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    import uvicorn


@app.command("serve", rich_help_panel="See why")
def serve_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    host: Annotated[str, typer.Option(help="An address other than this machine's own asks visitors for a token.")] = "127.0.0.1",  # noqa: E501
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8765,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    model: ModelPlace = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    ray: Annotated[str | None, typer.Option(help="Search on a Ray cluster: auto, local, or the HOST:PORT of its head.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    shards: Annotated[int, typer.Option(min=1, help="Processes of the cluster that share the pages.", rich_help_panel=CLUSTER)] = 2,  # noqa: E501
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Answer without shards that are silent, and say so.", rich_help_panel=CLUSTER)] = False,  # noqa: E501
) -> None:  # fmt: skip
    """Open a search page on localhost: results as thumbnails, and the evidence lit on each page.

    \b
    Examples
      anchorfold serve my.index
      anchorfold serve my.index --host 0.0.0.0 --port 8080 --no-browser
      anchorfold serve my.index --ray auto --shards 4
    """
    try:
        import uvicorn

        from anchorfold.serve.app import create_app
        from anchorfold.serve.connections import server_config
    except ImportError as error:
        raise AnchorFoldError("the search page needs its server: pip install 'anchorfold[serve]'.") from error
    from anchorfold.index import Index
    from anchorfold.serve.guard import LOOPBACK, new_token
    from anchorfold.serve.library import Library

    quiet_libraries()
    options: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
    with ExitStack() as stack:
        opened: Index
        if ray is None:
            opened = Index.open(index, model, **options)
        else:
            from anchorfold.cluster import ShardedIndex

            opened = stack.enter_context(
                ShardedIndex.open(index, model, address=ray, shards=shards, allow_partial=allow_partial, **options)
            )
        library = Library(opened)
        library.warm_up()
        token = None if host in LOOPBACK else new_token()
        config = server_config(create_app(library, token), host, port)
        server = uvicorn.Server(config)
        sock = bind(config)
        address = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/"
        shown = f"{address}?token={token}" if token else address
        out.print(f"Searching {index} at {shown}   (Ctrl-C ends it)", markup=False)
        if browser:
            threading.Timer(0.5, webbrowser.open, (shown,)).start()
        server.run([sock])


def bind(config: uvicorn.Config) -> socket.socket:
    """The server's socket, or one clear sentence."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
        sock.listen(128)  # whoever reads the address may connect at once
    except OSError as error:
        raise AnchorFoldError(
            f"cannot listen on {config.host}:{config.port}: {(error.strerror or '').lower()}."
        ) from error
    return sock
