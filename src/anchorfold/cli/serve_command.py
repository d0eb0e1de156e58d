"""`anchorfold serve`: search page and JSON API."""

from __future__ import annotations

import threading
import webbrowser
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from anchorfold.cli.app import app, out, quiet_libraries
from anchorfold.cli.options import CLUSTER, AllowPickle, Device, IndexLocation, ModelOverride, TrustRemoteCode
from anchorfold.errors import AnchorFoldError


@app.command("serve", rich_help_panel="Start")
def serve_command(
    index: IndexLocation,
    host: Annotated[str, typer.Option(help="Address to bind to; other addresses than localhost require a token.")] = "127.0.0.1",  # noqa: E501
    port: Annotated[int, typer.Option(help="Port; 0 selects a free port.", min=0, max=65535)] = 8765,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    model: ModelOverride = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    ray: Annotated[str | None, typer.Option(help="Search on a Ray cluster: auto, local, or HOST:PORT of its head node.", rich_help_panel=CLUSTER)] = None,  # noqa: E501
    shards: Annotated[int, typer.Option(min=1, help="Number of shards (processes) on the cluster.", rich_help_panel=CLUSTER)] = 2,  # noqa: E501
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Return partial results if shards time out.", rich_help_panel=CLUSTER)] = False,  # noqa: E501
) -> None:  # fmt: skip
    """Start a search page with thumbnails and heatmaps, and a JSON API.

    \b
    Examples
      anchorfold serve my.index
      anchorfold serve my.index --host 0.0.0.0 --port 8080 --no-browser
      anchorfold serve my.index --ray auto --shards 4
    """
    try:
        import uvicorn

        from anchorfold.server.app import create_app
        from anchorfold.server.connections import bind, network_urls, server_config
    except ImportError as error:
        raise AnchorFoldError("the search page requires FastAPI: pip install 'anchorfold[serve]'.") from error
    from anchorfold.indexes.index import Index
    from anchorfold.server.guard import token_for
    from anchorfold.server.service import IndexService

    quiet_libraries()
    options: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
    with ExitStack() as stack:
        if ray is None:
            opened = Index.open(index, model, **options)
        else:
            from anchorfold.cluster import ShardedIndex

            sharded = ShardedIndex.open(
                index, model, address=ray, shards=shards, allow_partial=allow_partial, **options
            )
            opened = stack.enter_context(sharded)
        service = IndexService(opened)
        service.warm_up()
        token = token_for(host)
        config = server_config(create_app(service, token), host, port)
        sock = bind(config)
        url, *others = (address + (f"?token={token}" if token else "") for address in network_urls(host, sock))
        out.print(f"Serving {opened.location} at {url} (press Ctrl-C to stop)", markup=False)
        for other in others:
            out.print(f"Other machines: {other}", markup=False)
        if browser:
            threading.Timer(0.5, webbrowser.open, (url,)).start()
        uvicorn.Server(config).run([sock])
