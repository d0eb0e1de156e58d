"""`anchorfold mcp`: search for agents."""

from __future__ import annotations

from typing import Annotated

import typer

from anchorfold.cli.app import app, err, quiet_libraries
from anchorfold.cli.options import AllowPickle, Device, IndexLocation, ModelOverride, TrustRemoteCode
from anchorfold.errors import AnchorFoldError


@app.command("mcp", rich_help_panel="Agents")
def mcp_command(
    index: IndexLocation,
    http: Annotated[bool, typer.Option("--http", help="Use streamable HTTP instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="With --http: address to bind to; other addresses than localhost require a token.")] = "127.0.0.1",  # noqa: E501
    port: Annotated[int, typer.Option(help="With --http: port; 0 selects a free port.", min=0, max=65535)] = 8766,
    model: ModelOverride = None,
    device: Device = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:  # fmt: skip
    """Start a read-only Model Context Protocol server for agents.

    \b
    Examples
      anchorfold mcp my.index                stdio, started by an agent
      anchorfold mcp my.index --http         HTTP, at http://127.0.0.1:8766/mcp
    """
    try:
        from anchorfold.server.mcp_server import create_server, http_app
    except ImportError as error:
        raise AnchorFoldError("the MCP server requires the mcp package: pip install 'anchorfold[mcp]'.") from error
    from anchorfold.indexes.index import Index
    from anchorfold.server.service import IndexService

    quiet_libraries()
    opened = Index.open(index, model, device=device, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    server = create_server(IndexService(opened))
    if not http:
        server.run("stdio")
        return
    import uvicorn

    from anchorfold.server.connections import bind, server_config, server_url
    from anchorfold.server.guard import Guard, token_for

    token = token_for(host)
    config = server_config(Guard(http_app(server, host), token), host, port)
    sock = bind(config)
    err.print(f"Serving {opened.location} at {server_url(host, sock)}mcp (press Ctrl-C to stop)", markup=False)
    if token:
        err.print(f"Required header: Authorization: Bearer {token}", markup=False)
    uvicorn.Server(config).run([sock])
