"""Conditions on columns, evaluated over all rows at once with SQL's three truth values."""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from anchorfold.index.store.metadata import Plain

Values = Callable[[str], tuple[np.ndarray, np.ndarray]]  # of a column: `(n,)` values, and where there are none
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """`(n,)` where a condition is true, and where that cannot be said because a value is missing."""

    true: np.ndarray
    unknown: np.ndarray


class Condition(ABC):
    """A checked condition."""

    @abstractmethod
    def evaluate(self, values: Values) -> Truth:
        """Over all rows of some columns."""

    @abstractmethod
    def columns(self) -> Iterator[str]:
        """The columns that it looks at."""


@dataclass(frozen=True)
class Column:
    """A column as one side of a comparison."""

    name: str


@dataclass(frozen=True)
class Compare(Condition):
    """Two columns, or a column and a value."""

    left: Column | Plain
    sign: str
    right: Column | Plain

    def evaluate(self, values: Values) -> Truth:
        """Unknown where either side is missing."""
        sides: list[Any] = []
        unknown = np.zeros(1, bool)
        for side in (self.left, self.right):
            if isinstance(side, Column):
                array, missing = values(side.name)
                unknown = unknown | missing
                sides.append(array)
            else:
                sides.append(side)
        return Truth(np.asarray(OPERATORS[self.sign](*sides), bool) & ~unknown, unknown)

    def columns(self) -> Iterator[str]:
        """One or two."""
        return (side.name for side in (self.left, self.right) if isinstance(side, Column))


@dataclass(frozen=True)
class OneColumn(Condition):
    """A condition on the values of one column."""

    column: str

    def columns(self) -> Iterator[str]:
        """That one."""
        yield self.column


@dataclass(frozen=True)
class IsMissing(OneColumn):
    """`is null`: never unknown."""

    def evaluate(self, values: Values) -> Truth:
        """True where there is no value."""
        _, missing = values(self.column)
        return Truth(missing, np.zeros_like(missing))


@dataclass(frozen=True)
class IsTruth(OneColumn):
    """`is true` or `is false` of a boolean column: never unknown."""

    wanted: bool

    def evaluate(self, values: Values) -> Truth:
        """False where there is no value."""
        array, missing = values(self.column)
        return Truth((array == self.wanted) & ~missing, np.zeros_like(missing))


@dataclass(frozen=True)
class OneOf(OneColumn):
    """`in (...)`."""

    options: Sequence[Plain]

    def evaluate(self, values: Values) -> Truth:
        """Unknown where there is no value."""
        array, missing = values(self.column)
        options = set(self.options)
        return Truth(np.fromiter((v in options for v in array.tolist()), bool, len(array)) & ~missing, missing)


@dataclass(frozen=True)
class Like(OneColumn):
    """`like`, or `ilike` if case does not count: `%` is any text, `_` any character."""

    pattern: str
    any_case: bool

    def evaluate(self, values: Values) -> Truth:
        """Unknown where there is no value."""
        array, missing = values(self.column)
        return Truth(np.fromiter(map(self.matches, array.tolist()), bool, len(array)) & ~missing, missing)

    @cached_property
    def _parts(self) -> list[re.Pattern[str]]:
        pattern = self.pattern.lower() if self.any_case else self.pattern
        return [
            re.compile(".".join(map(re.escape, part.split("_"))), re.DOTALL) for part in pattern.split("%")
        ]  # fmt: skip

    def matches(self, text: str) -> bool:
        """Whether a text fits: its parts one after another, each as early as it can be, in time linear in the text.

        >>> Like("title", "%rep_rt%24", any_case=False).matches("annual report 2024")
        True
        """
        text = text.lower() if self.any_case else text
        first, *others = self._parts
        if not others:
            return first.fullmatch(text) is not None
        *middle, last = others
        match = first.match(text)
        for part in middle:
            match = match and part.search(text, match.end())
        if match is None:
            return False
        # The last part is of fixed length, and stands at the end.
        start = len(text) - self._last_length
        return start >= match.end() and last.fullmatch(text, start) is not None

    @cached_property
    def _last_length(self) -> int:
        return len((self.pattern.lower() if self.any_case else self.pattern).rpartition("%")[2])


@dataclass(frozen=True)
class Not(Condition):
    """Unknown stays unknown."""

    inner: Condition

    def evaluate(self, values: Values) -> Truth:
        """The other way round."""
        inner = self.inner.evaluate(values)
        return Truth(~inner.true & ~inner.unknown, inner.unknown)

    def columns(self) -> Iterator[str]:
        """Those inside."""
        return self.inner.columns()


@dataclass(frozen=True)
class Joined(Condition):
    """Several conditions as one: true where that follows for certain, unknown where it might."""

    parts: Sequence[Condition]
    join: ClassVar[np.ufunc]

    def evaluate(self, values: Values) -> Truth:
        """Over all rows."""
        truths = [part.evaluate(values) for part in self.parts]
        true = self.join.reduce([t.true for t in truths])
        possible = self.join.reduce([t.true | t.unknown for t in truths])
        return Truth(true, possible & ~true)

    def columns(self) -> Iterator[str]:
        """Those of all parts."""
        for part in self.parts:
            yield from part.columns()


class AllTrue(Joined):
    """`and`: false where one is false, whatever the others are."""

    join = np.logical_and


class OneTrue(Joined):
    """`or`: true where one is true, whatever the others are."""

    join = np.logical_or
