"""Slow and idle clients on real sockets."""

import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from anchorfold.server.connections import TimedProtocol, bind, network_urls, server_config

HALF = b"GET /half HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
LARGE = 30_000_000  # more than the system keeps for a connection


async def answering(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b"x" * LARGE if scope["path"] == "/large" else b"ok"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def served(**limits):
    protocol = type("Quick", (TimedProtocol,), {"request_seconds": 1.0, "response_seconds": 1.0, **limits})
    config = server_config(answering, "127.0.0.1", 0, protocol)
    server = uvicorn.Server(config)
    listener = bind(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def connect(port, data=b""):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(20)
    connection.sendall(data)
    return connection


def is_closed(connection):
    """Whether the server has ended it, within the socket's time-out; what it answered before is read and dropped."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def trickle(connection, data):
    for _ in range(200):
        connection.sendall(data)
        time.sleep(0.05)


def read_answer(connection):
    answer = b""
    while not answer.endswith(b"ok"):
        answer += connection.recv(1000)
    return answer


def is_answered(port):
    return httpx.get(f"http://127.0.0.1:{port}/").text == "ok"


def test_incomplete_requests_are_closed_while_others_are_served():
    with served(request_seconds=5.0) as (server, port):  # all connections are open before the first one times out
        halves = [connect(port, HALF) for _ in range(300)]
        assert is_answered(port)
        assert len(server.server_state.connections) >= 300
        assert all(map(is_closed, halves))
        assert is_answered(port)
        assert not [c for c in server.server_state.connections if c.cycle is None]


def test_small_packets_are_sent_at_once():
    with served() as (server, port), httpx.Client() as client:
        assert client.get(f"http://127.0.0.1:{port}/").text == "ok"
        (connection,) = server.server_state.connections
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_slow_header_is_closed():
    with served() as (_, port):
        slow = connect(port, HALF)
        with pytest.raises(ConnectionError):
            trickle(slow, b"x")


def test_an_idle_connection_is_closed():
    with served() as (_, port):
        assert is_closed(connect(port))


@pytest.mark.parametrize("kind", [b"Content-Length: 1000000000000", b"Transfer-Encoding: chunked"])
def test_a_body_without_an_end_is_closed(kind):
    with served() as (_, port):
        endless = connect(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % kind)
        assert read_answer(endless).startswith(b"HTTP/1.1 200")  # no endpoint reads a body
        with pytest.raises(ConnectionError):
            trickle(endless, b"5\r\nhello\r\n")
        assert is_answered(port)


def test_timeout_restarts_for_a_second_request():
    with served() as (_, port):
        connection = connect(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
        time.sleep(0.8)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.8)  # past the time of the first
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(HALF)
        assert is_closed(connection)


def test_a_response_that_is_not_read_is_aborted():
    with served() as (server, port):
        deaf = connect(port, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(200):
            time.sleep(0.05)
            if not server.server_state.connections and not server.server_state.tasks:
                break
        assert not server.server_state.connections
        assert not server.server_state.tasks
        deaf.close()
        assert len(httpx.get(f"http://127.0.0.1:{port}/large").content) == LARGE


def test_above_the_connection_limit_the_slowest_is_closed():
    with served(request_seconds=60.0, max_connections=20) as (server, port):
        halves = [connect(port, HALF) for _ in range(100)]
        assert is_answered(port)
        assert len(server.server_state.connections) <= 21
        assert is_closed(halves[0])
        halves[-1].settimeout(0.2)
        assert not is_closed(halves[-1])


def test_invalid_http_prints_nothing(capfd):
    with served() as (_, port):
        assert is_closed(connect(port, b"\x16\x03\x01 hello\r\n\r\n"))
        upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert connect(port, upgrade).recv(1000).startswith(b"HTTP/1.1 200")
    assert capfd.readouterr() == ("", "")


def test_wildcard_addresses_are_printed_as_addresses_that_can_be_opened():
    with bind(server_config(answering, "0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        local, *others = network_urls("0.0.0.0", listener)
        assert local == f"http://127.0.0.1:{port}/"
        assert not [url for url in others if "0.0.0.0" in url or "127." in url]
        for url in others:
            connection = socket.create_connection((url.split("/")[2].rpartition(":")[0], port), timeout=10)
            connection.close()
        assert network_urls("127.0.0.1", listener) == [local]
