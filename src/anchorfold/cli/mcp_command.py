"""`anchorfold mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anchorfold.cli.app import app, err, quiet_libraries
from anchorfold.cli.options import AllowPickle, Device, ModelPlace, TrustRemoteCode
from anchorfold.cli.serve_command import bind
from anchorfold.errors import AnchorFoldError


@app.command("mcp", rich_help_panel="See why")
def mcp_command(
    index: Annotated[Path, typer.Argument(help="The index.", show_default=False)],
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP instead of standard input and output.")] = False,  # noqa: E501
    host: Annotated[str, typer.Option(help="With --http: an address other than this machine's own asks for a token.")] = "127.0.0.1",  # noqa: E501
    port: Annotated[int, typer.Option(help="With --http: 0 takes a free one.", min=0, max=65535)] = 8766,
    model: ModelPlace = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:  # fmt: skip
    """Let agents search an index: a Model Context Protocol server, read-only.

    \b
    Examples
      anchorfold mcp my.index                started by an agent, over standard input and output
      anchorfold mcp my.index --http         for several agents, at http://127.0.0.1:8766/mcp
    """
    try:
        from anchorfold.serve.mcp_server import create_server, http_app
    except ImportError as error:
        raise AnchorFoldError("the server for agents needs its protocol: pip install 'anchorfold[mcp]'.") from error
    from anchorfold.index import Index
    from anchorfold.serve.library import Library

    quiet_libraries()
    server = create_server(
        Library(Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle))
    )
    if not http:
        server.run("stdio")
        return
    import uvicorn

    from anchorfold.serve.connections import server_config
    from anchorfold.serve.guard import LOOPBACK, Guard, new_token

    token = None if host in LOOPBACK else new_token()
    config = server_config(Guard(http_app(server, host), token), host, port)
    sock = bind(config)
    address = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/mcp"
    err.print(f"Agents find {index} at {address}   (Ctrl-C ends it)", markup=False)
    if token:
        err.print(f"They send the header  Authorization: Bearer {token}", markup=False)
    uvicorn.Server(config).run([sock])
