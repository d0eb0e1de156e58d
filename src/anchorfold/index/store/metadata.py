"""What is known of a document besides its pages, as the log keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FROM_FILE = ("title", "author", "language")  # what a file says of itself; people may say otherwise
BUILT_IN = {
    "document": "text", "folder": "text", "kind": "text", "page": "integer", "pages": "integer", "modified": "date",
    **dict.fromkeys(FROM_FILE, "text"),
}  # fmt: skip
Plain = str | int | float | bool  # a value as JSON has it; a date is ISO text, and its column says that it is one


@dataclass(frozen=True, slots=True)
class Metadata:
    """`file` is what the file says of itself (title, author, language); `given` what people said, by column."""

    file: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Plain] = field(default_factory=dict)

    def described(self, values: Mapping[str, Plain | None]) -> Metadata:
        """With other values; None takes one away.

        >>> Metadata(given={"year": 2023, "draft": True}).described({"year": 2024, "draft": None}).given
        {'year': 2024}
        """
        given = {**self.given, **values}
        return Metadata(self.file, {name: value for name, value in given.items() if value is not None})

    def typed(self) -> dict[str, tuple[type, Plain]]:
        """What was given, so that 1, 1.0 and true are three things."""
        return {name: (type(value), value) for name, value in self.given.items()}
