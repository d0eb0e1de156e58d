"""A document format of another package: every line of the file is the brightness of a page, 0 to 255."""

from PIL import Image

from anchorfold.documents import DocumentReader
from anchorfold.errors import UnreadableDocumentError


class GreyPages(DocumentReader):
    """An open file of brightnesses."""

    def __init__(self, data, identity, pixels):
        super().__init__(data, identity, pixels)
        self.lines = data.decode().split()

    def __len__(self):
        return len(self.lines)

    def image(self, number):
        """A page of one colour."""
        if not self.lines[number].isdecimal():
            raise UnreadableDocumentError(f"{self.lines[number]!r} is not a brightness")
        return Image.new("RGB", (60, 80), (int(self.lines[number]),) * 3)
