"""Connections that nobody waits on for ever: a request must come, and its answer must be taken, within some time."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with the limits that it lacks.

    Its only time-out is for the pause between two requests: a client that sends half a header, or a body without an
    end, or that does not read its answer, would keep its connection.
    """

    request_seconds = 10.0  # for a whole request, from the connection or its first byte on
    answer_seconds = 60.0  # for taking what was written
    most_connections = 512

    _request_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come; past the limit, the one that has been sending its request for longest must go."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # hear of all that the client does not take
        self._expect_request(True)
        if len(self.connections) > self.most_connections:
            waiting = {c: c._request_timer for c in self.connections if isinstance(c, TimedProtocol)}
            _, _, slowest = min((t.when(), id(c), c) for c, t in waiting.items() if t is not None)
            slowest._expect_request(False)  # the next one over the limit must not meet it again
            slowest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Some of a request: the first bytes start its time, the last ones end it."""
        super().data_received(data)
        self._expect_request(self.conn.their_state in (h11.IDLE, h11.SEND_BODY))

    def pause_writing(self) -> None:
        """The client does not take its answer as fast as it is written."""
        super().pause_writing()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken all of it."""
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
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
    """How the server runs: no log of requests, no sockets but HTTP's, and a few seconds for ending."""
    return uvicorn.Config(
        app, host, port, http=protocol, ws="none", log_level="error", access_log=False, server_header=False,
        timeout_graceful_shutdown=5,
    )  # fmt: skip
