"""Access control and request limits, as ASGI middleware."""

from __future__ import annotations

import hmac
import re
import secrets

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "anchorfold_token"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# A Host header that names exactly this machine: no user before "@", no text after a bracket.
LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}


def token_for(host: str) -> str | None:
    """Return a new access token for a server on this address; None on loopback addresses, which need none."""
    return None if host in LOOPBACK else secrets.token_urlsafe(24)


class Guard:
    """ASGI middleware that requires the token, or a loopback Host header if there is no token.

    Without a token the server is bound to loopback only; the Host check prevents DNS rebinding. Requests from web pages
    of other origins are refused in both cases.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or respond with 400, 401, 403 or 421."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        hosts = request.headers.getlist("host")
        in_url = self._is_token(request.query_params.get("token"))
        if len(hosts) > 1:
            response: ASGIApp = refusal(400, "Bad request: more than one Host header.")
        elif {"content-length", "transfer-encoding"} <= set(request.headers):  # proxies may disagree where it ends
            response = refusal(400, "Bad request: both Content-Length and Transfer-Encoding.", {"connection": "close"})
        elif self.token is None and not any(map(LOCAL_HOST.fullmatch, hosts)):
            response = refusal(421, "Misdirected request: this server accepts requests for localhost only.")
        elif is_cross_site(request):
            response = refusal(403, "Forbidden: cross-site request. Open the server in its own browser tab.")
        elif self.token and not (in_url or any(map(self._is_token, (bearer(request), request.cookies.get(COOKIE))))):
            response = refusal(401, "Authentication required: missing or wrong token. Open the URL printed at start.")
        else:
            response = self.app
        added = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
        if in_url:  # later requests of the page send the cookie; scripts cannot read it
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            added.append((b"set-cookie", cookie.encode()))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await response(scope, receive, send_with_headers)

    def _is_token(self, value: str | None) -> bool:
        if self.token is None or value is None:
            return False
        return hmac.compare_digest(value.encode("utf-8", "replace"), self.token.encode())


class ConcurrencyLimit:
    """ASGI middleware that limits concurrent API requests; above the limit the response is 503."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit, self.active = app, limit, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or respond with 503."""
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self.app(scope, receive, send)
        elif self.active >= self.limit:
            await refusal(503, "Too many concurrent requests: try again in a moment.")(scope, receive, send)
        else:
            self.active += 1
            try:
                await self.app(scope, receive, send)
            finally:
                self.active -= 1


def is_cross_site(request: Request) -> bool:
    """Return whether a browser sent a request on behalf of a page of another origin.

    Programs other than browsers send neither header. A link from another site may open the search page itself, which
    contains no data.
    """
    headers = request.headers
    host = headers.get("host", "").lower()
    if not {origin.lower() for origin in headers.getlist("origin")} <= {f"http://{host}", f"https://{host}"}:
        return True
    if set(headers.getlist("sec-fetch-site")) <= {"none", "same-origin"}:
        return False
    opens_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return not (opens_page and request.method == "GET" and request.scope["path"] == "/")


def bearer(request: Request) -> str | None:
    """Return the token of the Authorization header."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None


def refusal(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error response."""
    return JSONResponse(
        {"detail": detail}, status, headers=headers or ({"retry-after": "1"} if status == 503 else None)
    )
