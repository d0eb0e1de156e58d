"""Who may ask, and how much at once."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

COOKIE = "anchorfold_token"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# A Host header that names this machine, and nothing else: no user before an @, no text behind a bracket.
LOCAL_HOST = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
PAGE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
]


def new_token() -> str:
    """A secret that is hard to guess."""
    return secrets.token_urlsafe(24)


class Guard:
    """ASGI middleware: asks for the token if there is one, and for a local name if there is none.

    Without a token only this machine can connect; a web page that points its own name at 127.0.0.1 is refused by the
    Host header. Requests that a web page of another origin sends are refused in both cases.
    """

    def __init__(self, app: Any, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer 400, 401, 403 or 421."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if len(hosts) > 1:
            await refuse(send, 400, "one Host header, please")
            return
        if self.token is None and not any(map(LOCAL_HOST.fullmatch, hosts)):
            await refuse(send, 421, "this server answers to localhost only")
            return
        if is_cross_site(scope, headers):
            await refuse(send, 403, "cross-site request refused: open this server in its own browser tab")
            return
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        in_address = self.token is not None and self._same(given)
        if self.token is not None and not (in_address or self._same(bearer(headers)) or self._same(cookie(headers))):
            await refuse(send, 401, "this server wants its token: open the address that it printed at its start")
            return

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = list(PAGE_HEADERS)
                if in_address:
                    # The page's own requests carry the token from here on; scripts cannot read it.
                    value = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    added.append((b"set-cookie", value.encode()))
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await self.app(scope, receive, with_headers)

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())


class Bounded:
    """ASGI middleware: at most so many API requests at once; past that, 503 without waiting."""

    def __init__(self, app: Any, limit: int) -> None:
        self.app, self.limit, self.now = app, limit, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer 503."""
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self.app(scope, receive, send)
            return
        if self.now >= self.limit:
            await refuse(send, 503, "too many requests at once: try again in a moment", [(b"retry-after", b"1")])
            return
        self.now += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.now -= 1


def is_cross_site(scope: Scope, headers: dict[str, str]) -> bool:
    """Return whether a browser sent a request on behalf of a page of another origin.

    Programs other than browsers send neither header. A link from another site may open the search page itself, which
    contains no data.
    """
    host = headers.get("host", "").lower()
    if "origin" in headers and headers["origin"].lower() not in (f"http://{host}", f"https://{host}"):
        return True
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    opens_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return not (opens_page and scope["method"] == "GET" and scope["path"] == "/")


def bearer(headers: dict[str, str]) -> str:
    """The token of an Authorization header."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def cookie(headers: dict[str, str]) -> str:
    """The token of a cookie."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except Exception:
        return ""
    return cookie.value if cookie else ""


async def refuse(send: Send, status: int, why: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """A short JSON answer."""
    body = ('{"detail":"' + why + '"}').encode()
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": start + PAGE_HEADERS})
    await send({"type": "http.response.body", "body": body})
