"""Things that can be added without changing this package: found by name, by registration or by entry point."""

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
    """What installed packages offer: read when it is first asked for, and again once `sys.path` is another."""
    points = _installed(group, tuple(sys.path))
    return points if name is None else points.select(name=name)


@cache
def _installed(group: str, _path: tuple[str, ...]) -> EntryPoints:
    from importlib import metadata  # takes a while, like reading what every package says of itself

    return metadata.entry_points(group=group)


def choose_from(name: str, names: Collection[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return the end of an error message about an unknown name: the likely meaning, and the names to choose from.

    Args:
        name: the unknown name.
        names: the known names.
        aliases: other common names, mapped to the known names.

    Examples:
        >>> choose_from("K-Means", ["semantic-clustering", "ward"], {"kmeans": "semantic-clustering"})
        "did you mean 'semantic-clustering'? Choose one of semantic-clustering, ward."
        >>> choose_from("wards", ["semantic-clustering", "ward"])
        "did you mean 'ward'? Choose one of semantic-clustering, ward."
    """
    from difflib import get_close_matches  # not needed unless something is wrong

    written = name.lower().replace("_", "-")
    listed = f"one of {', '.join(sorted(names))}."
    meant = (aliases or {}).get(written.replace("-", ""))
    close = [meant] if meant in names else get_close_matches(written, names, 1)
    return f"did you mean {close[0]!r}? Choose {listed}" if close else f"choose {listed}"


class Registry(Generic[T]):
    """Named things of one kind: ours, those registered in this process, and those of installed packages.

    Args:
        group: the entry point group of other packages, such as `anchorfold.compressors`.
        noun: what one of them is called in messages.
        ours: for each name where it is, `module:attribute`; imported when it is asked for.
        aliases: other common names, lower-case and without hyphens, for suggestions in error messages.
    """

    def __init__(
        self, group: str, noun: str, ours: Mapping[str, str], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.group, self.noun, self._ours, self.aliases = group, noun, dict(ours), dict(aliases or {})
        self._registered: dict[str, T] = {}

    def register(self, name: str, value: T) -> None:
        """Make something known under a name that is free."""
        if name in self.names():
            raise ValueError(f"a {self.noun} called {name!r} is registered already.")
        self._registered[name] = value

    def unregister(self, name: str) -> None:
        """Forget what was registered under a name in this process."""
        del self._registered[name]

    def names(self) -> list[str]:
        """All names, sorted."""
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
