"""A mapping of which many versions live side by side: a change costs what it changes, not what there is."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

FEWEST = 64  # changes that are carried along before they are worked in


class Layered(Mapping[K, V], Generic[K, V]):
    """A dictionary that never changes, as a large one that versions share and a small one of changes to it.

    >>> first = Layered({1: "a", 2: "b"})
    >>> second = first.changed({2: None, 3: "c"})
    >>> dict(first), dict(second)
    ({1: 'a', 2: 'b'}, {1: 'a', 3: 'c'})
    """

    __slots__ = ("_layers", "_length")

    def __init__(self, content: Mapping[K, V] | None = None) -> None:
        # One attribute, so that threads that read while it is flattened see both layers of before or of after.
        self._layers: tuple[dict[K, V], dict[K, V | None]] = (dict(content or {}), {})
        self._length = len(self._layers[0])

    def changed(self, patch: Mapping[K, V | None]) -> Layered[K, V]:
        """The next version; None takes a key away."""
        if not patch:
            return self
        base, changes = self._layers
        after: Layered[K, V] = Layered()
        after._layers = (base, {**changes, **patch})
        came = sum(value is not None and key not in self for key, value in patch.items())
        went = sum(value is None and key in self for key, value in patch.items())
        after._length = self._length + came - went
        if len(after._layers[1]) > max(FEWEST, int(len(base) ** 0.5)):
            after._flat()
        return after

    def __getitem__(self, key: K) -> V:
        base, changes = self._layers
        value = changes[key] if key in changes else base[key]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        base, changes = self._layers
        return changes[key] is not None if key in changes else key in base

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        return iter(self._flat())

    def items(self) -> ItemsView[K, V]:
        """As of a dictionary."""
        return self._flat().items()

    def values(self) -> ValuesView[V]:
        """As of a dictionary."""
        return self._flat().values()

    def _flat(self) -> dict[K, V]:
        base, changes = self._layers
        if changes:
            base = dict(base)
            for key, value in changes.items():
                if value is None:
                    base.pop(key, None)
                else:
                    base[key] = value
            self._layers = (base, {})
        return base
