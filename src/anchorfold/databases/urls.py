"""URLs of databases, what of them may be printed, and passwords from a keyring."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

SECRET_OPTIONS = ("password", "sslpassword", "passfile", "api_key", "apikey", "token")
_UNESCAPED_PASSWORD = re.compile(r"^([^:]+://[^:/@?]*):.*@", re.DOTALL)


def keyring_password(service: str, user: str) -> str | None:
    """Return a password of the system's keyring, stored with `keyring set SERVICE USER`; None if there is none."""
    try:
        import keyring
    except ImportError:
        return None
    with suppress(Exception):  # no keyring is unlocked
        password: str | None = keyring.get_password(service, user)
        return password
    return None


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
