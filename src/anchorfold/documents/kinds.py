"""The contract of a kind of document, and the register that finds one by the ending of a name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfold._registry import Registry
from anchorfold.documents.content import FileIdentity, read_file

if TYPE_CHECKING:
    from PIL import Image


class Pages(ABC):
    """An open document. `identity` is that of its bytes, `pixels` how large a page is made at most.

    It is made in the renderer's process, whose memory and time are limited: what it raises costs a document or a page.
    """

    def __init__(self, data: bytes, identity: FileIdentity, pixels: int) -> None:
        self.identity, self.pixels = identity, pixels

    @classmethod
    def count(cls, path: str | Path) -> int:
        """Pages of a file; reading no more of it than that takes is welcome. May raise anything."""
        data, identity = read_file(path)
        return len(cls(data, identity, 1))

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def image(self, number: int) -> Image.Image:
        """Page `number`, from 0, in RGB; raises UnreadableDocumentError with the reason."""

    def text(self, number: int) -> str:
        """What page `number`, from 0, says, for kinds that know it without reading the picture; else nothing."""
        return ""

    def information(self) -> dict[str, str]:
        """What the file says of itself: `title`, `author`, `language`, as far as it does. May raise anything."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Let go of the file's bytes, if they are held."""


# A package that reads another kind names it in this entry point group: the ending, and a class like `Pages`.
KINDS: Registry[type[Pages]] = Registry(
    "anchorfold.documents",
    "kind of document",
    {"pdf": "anchorfold.documents.pages:PdfPages"}
    | dict.fromkeys(("png", "jpg", "jpeg", "webp", "tif", "tiff"), "anchorfold.documents.pages:ImagePages"),
)


@cache
def endings() -> tuple[str, ...]:
    """With their dots, sorted."""
    return tuple(f".{name}" for name in KINDS.names())


def is_document(path: str | Path) -> bool:
    """Whether a file has the name of a document."""
    return Path(path).suffix.lower() in endings()


def kind_of(path: str | Path) -> type[Pages]:
    """What opens a file, by its name."""
    return KINDS[Path(path).suffix.lower().removeprefix(".")]
