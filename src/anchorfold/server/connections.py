"""HTTP connections with time limits for requests and responses."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from anchorfold.errors import AnchorFoldError, os_reason

# Loopback address, and a documentation address (never contacted), by wildcard address.
WILDCARDS = {"0.0.0.0": ("127.0.0.1", "192.0.2.1"), "::": ("::1", "2001:db8::1")}


class TimedProtocol(H11Protocol):
    """HTTP protocol of uvicorn with a request timeout, a response timeout and a connection limit.

    The only timeout of uvicorn is for the pause between two requests: a client that sends an incomplete header or body,
    or does not read the response, would keep its connection.
    """

    request_seconds = 10.0  # from the connection, or the first byte of a request, to its end
    response_seconds = 60.0  # for the client to read what was written
    max_connections = 512

    _request_timer: asyncio.TimerHandle | None = None
    _response_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the request timeout; above the connection limit, abort the slowest incomplete request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pause_writing is called for any unread data
        self._expect_request(True)
        if len(self.connections) > self.max_connections:
            waiting = {c: c._request_timer for c in self.connections if isinstance(c, TimedProtocol)}
            _, _, slowest = min((t.when(), id(c), c) for c, t in waiting.items() if t is not None)
            slowest._expect_request(False)  # it must not be selected again
            slowest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Start the request timeout at the first bytes of a request, and stop it at the last."""
        super().data_received(data)
        self._expect_request(self.conn.their_state in (h11.IDLE, h11.SEND_BODY))

    def pause_writing(self) -> None:
        """Start the response timeout: the client reads more slowly than the server writes."""
        super().pause_writing()
        if self._response_timer is None:
            self._response_timer = self.loop.call_later(self.response_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the response timeout: the client has read everything."""
        super().resume_writing()
        if self._response_timer is not None:
            self._response_timer.cancel()
            self._response_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        self._expect_request(False)
        self.resume_writing()
        super().connection_lost(exc)

    def _expect_request(self, expected: bool) -> None:
        if expected and self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_seconds, self.transport.abort)
        elif not expected and self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None


def server_config(app: Any, host: str, port: int, protocol: type[TimedProtocol] = TimedProtocol) -> uvicorn.Config:
    """Return the configuration of the server: no access log, no WebSockets, graceful shutdown within 5 seconds."""
    return uvicorn.Config(
        app, host, port, http=protocol, ws="none", log_level="error", access_log=False, server_header=False,
        timeout_graceful_shutdown=5,
    )  # fmt: skip


def bind(config: uvicorn.Config) -> socket.socket:
    """Return a bound socket that accepts connections.

    Raises:
        AnchorFoldError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio disables the delay of small packets (Nagle) only for an explicit protocol.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
        sock.listen(128)  # clients may connect as soon as the address is printed
    except OSError as error:
        raise AnchorFoldError(f"cannot bind to {config.host}:{config.port}: {os_reason(error)}.") from error
    return sock


def server_url(host: str, sock: socket.socket) -> str:
    """Return the URL of a server."""
    return f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/"


def network_urls(host: str, sock: socket.socket) -> list[str]:
    """Return the URLs under which a server can be opened: of each of the machine's addresses for a wildcard address."""
    if host not in WILDCARDS:
        return [server_url(host, sock)]
    local, probe = WILDCARDS[host]
    addresses = [local]
    with suppress(OSError), socket.socket(sock.family, socket.SOCK_DGRAM) as route:
        route.connect((probe, 9))  # selects the address of the default route; sends nothing
        addresses.append(route.getsockname()[0])
    with suppress(OSError):
        addresses += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, sock.family)]
    reachable = [a for a in addresses[1:] if not ip_address(a.partition("%")[0]).is_loopback and "%" not in a]
    return [server_url(address, sock) for address in dict.fromkeys([local, *reachable])]
