"""Registry for extension points: objects are looked up by name, from registrations or entry points."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from anchorfold.errors import AnchorFoldError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

T = TypeVar("T")


def entry_points(group: str, name: str | None = None) -> EntryPoints:
    """Return the entry points of installed packages; read on first use, and again when `sys.path` changes."""
    points = _installed(group, tuple(sys.path))
    return points if name is None else points.select(name=name)


@cache
def _installed(group: str, _path: tuple[str, ...]) -> EntryPoints:
    from importlib import metadata  # slow to import, and reading the metadata of all packages is slow too

    return metadata.entry_points(group=group)


def choose_from(name: str, names: Collection[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return the end of an error message about an unknown name: a suggestion and the known names.

    Args:
        name: the unknown name.
        names: the known names.
        aliases: other common names, mapped to the known names.

    Examples:
        >>> choose_from("K-Means", ["semantic-clustering", "ward"], {"kmeans": "semantic-clustering"})
        "did you mean 'semantic-clustering'? Choose one of semantic-clustering, ward."
        >>> choose_from("wards", ["semantic-clustering", "ward"])
        "did you mean 'ward'? Choose one of semantic-clustering, ward."
        >>> choose_from("kmean", ["semantic-clustering", "ward"], {"kmeans": "semantic-clustering"})
        "did you mean 'semantic-clustering'? Choose one of semantic-clustering, ward."
    """
    from difflib import get_close_matches  # needed only for error messages

    written = name.lower().replace("_", "-")
    listed = f"one of {', '.join(sorted(names))}."
    meant = {alias: known for alias, known in (aliases or {}).items() if known in names}
    close = get_close_matches(written.replace("-", ""), meant, 1) or get_close_matches(written, names, 1)
    return f"did you mean {meant.get(close[0], close[0])!r}? Choose {listed}" if close else f"choose {listed}"


class Registry(Generic[T]):
    """Named objects of one kind: built-in, registered in this process, or provided by installed packages.

    Args:
        group: entry point group for other packages, such as `anchorfold.compressors`.
        noun: name of the kind of object in messages.
        ours: built-in objects as `module:attribute` by name; imported on first use.
        aliases: other common names, lower-case and without hyphens, for suggestions in error messages.
    """

    def __init__(
        self, group: str, noun: str, ours: Mapping[str, str], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.group, self.noun, self._ours, self.aliases = group, noun, dict(ours), dict(aliases or {})
        self._registered: dict[str, T] = {}

    def register(self, name: str, value: T) -> None:
        """Register an object under an unused name."""
        if name in self.names():
            raise ValueError(f"a {self.noun} called {name!r} is registered already.")
        self._registered[name] = value

    def unregister(self, name: str) -> None:
        """Remove an object that was registered in this process."""
        del self._registered[name]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted({*self._ours, *self._registered, *(point.name for point in entry_points(group=self.group))})

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self._registered or name in self.names()

    def __getitem__(self, name: str) -> T:
        if name in self._registered:
            return self._registered[name]
        if name in self._ours:
            module, _, attribute = self._ours[name].partition(":")
            value: T = getattr(import_module(module), attribute)
            return value
        for point in entry_points(group=self.group, name=name):
            try:
                loaded: T = point.load()
            except Exception as error:
                package = point.dist.name if point.dist else point.value
                raise AnchorFoldError(
                    f"the {self.noun} {name!r} of the package {package} cannot be imported ({error}): update or "
                    "uninstall that package."
                ) from error
            return loaded
        choice = choose_from(name, self.names(), self.aliases)
        raise AnchorFoldError(f"there is no {self.noun} called {name!r}: {choice}")
