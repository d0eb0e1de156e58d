"""URLs of databases, and what of them may be printed."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

SECRET_OPTIONS = ("password", "sslpassword", "passfile", "api_key", "apikey", "token")
_UNESCAPED_PASSWORD = re.compile(r"^([^:]+://[^:/@?]*):.*@", re.DOTALL)


def is_url(location: str | Path) -> bool:
    """Return whether a location is a URL rather than a folder."""
    return isinstance(location, str) and "://" in location


def without_password(location: str | Path) -> str:
    """Return a location for messages: a URL without its password and keys.

    Examples:
        >>> without_password("postgresql://me:secret@host/db?schema=reports&password=x")
        'postgresql://me@host/db?schema=reports'
        >>> without_password("postgresql://me:se/cret@host/db")
        'postgresql://me@host/db'
        >>> without_password("my.index")
        'my.index'
    """
    if not is_url(location):
        return str(location)
    url = _UNESCAPED_PASSWORD.sub(r"\1@", str(location)) if "@" in str(location).partition("?")[0] else str(location)
    try:
        parts = urlsplit(url)
    except ValueError:  # an invalid IPv6 address
        return url.partition("?")[0]
    options = [(name, value) for name, value in parse_qsl(parts.query, True) if name.lower() not in SECRET_OPTIONS]
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(options, safe="/:,"), ""))
