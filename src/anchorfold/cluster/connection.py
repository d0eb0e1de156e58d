"""Import Ray and connect to a cluster."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anchorfold.errors import AnchorFoldError, os_reason

CONNECT_SECONDS = 5.0


def import_ray() -> Any:
    """Return the Ray module, or raise AnchorFoldError with the install command."""
    try:
        import ray
    except ImportError as error:
        raise AnchorFoldError("a cluster needs Ray: pip install 'anchorfold[ray]'.") from error
    return ray


@contextmanager
def connection(address: str) -> Iterator[Any]:
    """Connect to a cluster and yield the Ray module; an existing connection is reused and left open.

    Args:
        address: `auto` for the cluster of this node, `local` for a new cluster on this machine only that ends with the
            connection, or the `host:port` of a head node.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # users have not consented
    if address == "local":
        with _own_token(), _loopback_only():
            yield from _connect(ray, address, {"include_dashboard": False})
        return
    if address != "auto":
        _require_open_port(address)
    yield from _connect(ray, address, {})


def _connect(ray: Any, address: str, options: dict[str, Any]) -> Iterator[Any]:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if "InvalidAuthToken" in "".join(traceback.format_exception(error)):
            raise AnchorFoldError(
                "this Ray cluster requires a token: set RAY_AUTH_MODE=token here and on every node, and RAY_AUTH_TOKEN "
                "to the output of `ray get-auth-token` on the head."
            ) from error
        where = "this machine is no node of a Ray cluster" if address == "auto" else f"no Ray cluster at {address}"
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AnchorFoldError(
            f"{where} ({first}): start a node with `ray start --address=HOST:PORT`, or give `local` for this machine "
            "alone."
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray installs a handler that exits immediately
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _own_token() -> Iterator[None]:
    """Set an authentication token for a cluster that ends with this process.

    Otherwise Ray writes a token to the home directory, and later clusters require it on all of their nodes.
    """
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    before = {name: os.environ.get(name) for name in names}
    if not any(before.values()):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Bind all processes of a new local cluster to 127.0.0.1.

    Ray replaces a loopback address by that of a network interface and then binds to all interfaces, unless this
    constant disables multi-node clusters, as it does by default on macOS and Windows.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _require_open_port(address: str) -> None:
    """Raise AnchorFoldError if the port is closed; Ray itself retries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        raise AnchorFoldError(f"{address!r} is no address of a cluster: give auto, local or HOST:PORT.")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise AnchorFoldError(
            f"nothing answers at {address} ({os_reason(error)}): is the head node running there?"
        ) from error
