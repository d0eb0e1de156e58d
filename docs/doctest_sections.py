"""A griffe extension: doctests outside an `Examples:` section are rendered as one.

As plain text, Markdown would read `>>>` as quotes and lists such as `[20, 20]` as links.
"""

from __future__ import annotations

from typing import Any

import griffe


class DoctestSections(griffe.Extension):
    """Put doctests that begin a paragraph of a docstring below `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = with_sections(obj.docstring.value)


def with_sections(text: str) -> str:
    """Return a docstring whose unindented doctests are in `Examples:` sections.

    Examples:
        >>> print(with_sections("Add.\\n\\n>>> 1 + 1\\n2"))
        Add.
        <BLANKLINE>
        Examples:
            >>> 1 + 1
            2
    """
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        "Examples:\n" + "\n".join(f"    {line}" for line in paragraph.splitlines())
        if paragraph.startswith(">>>")
        else paragraph
        for paragraph in paragraphs
    )
