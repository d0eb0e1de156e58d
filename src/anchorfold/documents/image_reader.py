"""Image files, decoded by Pillow."""

from __future__ import annotations

import io
from itertools import count

from PIL import Image, ImageOps, UnidentifiedImageError

from anchorfold.documents.formats import MAX_SIDE, DocumentReader, FileIdentity, damage_as
from anchorfold.errors import UnreadableDocumentError

MAX_IMAGE_PIXELS = 175_000_000  # slightly below Pillow's own limit
# Formats behind the supported extensions. Pillow supports many more and starts external programs for some.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
DAMAGED = "damaged image"


class ImageReader(DocumentReader):
    """Reader of image files; a TIFF file may contain several pages."""

    def __init__(self, data: bytes, identity: FileIdentity, pixels: int) -> None:
        super().__init__(data, identity, pixels)
        with damage_as(DAMAGED):
            try:
                self.file = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
            except UnidentifiedImageError as error:
                raise UnreadableDocumentError("not a supported image") from error
            except Image.DecompressionBombError as error:
                raise _too_large() from error
            self.frames = _count_frames(self.file)

    def __len__(self) -> int:
        return self.frames

    def image(self, number: int) -> Image.Image:
        """Decode a frame upright, on a white background, with at most `pixels` pixels."""
        with damage_as(DAMAGED):
            self.file.seek(number)
            if self.file.width * self.file.height > MAX_IMAGE_PIXELS:
                raise _too_large()
            self.file.load()
            frame = _upright(self.file)
            if frame.mode in ("RGBA", "LA", "PA") or "transparency" in frame.info:
                frame = frame.convert("RGBA")
                frame = Image.alpha_composite(Image.new("RGBA", frame.size, "white"), frame)
            if frame.mode.startswith("I;16") or frame.mode == "I":
                frame = frame.point(lambda v: v / 256).convert("L")
            frame = frame.convert("RGB")
            width, height = frame.size
            scale = min((self.pixels / (width * height)) ** 0.5, MAX_SIDE / max(width, height))
            if scale < 1:
                size = (max(1, round(width * scale)), max(1, round(height * scale)))
                frame = frame.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        return frame

    def close(self) -> None:
        """Release the content of the file."""
        self.file.close()


def _too_large() -> UnreadableDocumentError:
    return UnreadableDocumentError(f"more than {MAX_IMAGE_PIXELS // 10**6} million pixels: reduce the image")


def _count_frames(image: Image.Image) -> int:
    """Count the pages of a TIFF file; other formats have one page (further frames are animations or previews)."""
    if image.format != "TIFF":
        return 1
    for number in count():
        try:
            image.seek(number)
        except EOFError:
            return number
        except MemoryError:
            raise
        except Exception:  # the last page may be damaged
            return number + 1
    raise AssertionError


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; damaged EXIF data is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:
        return image
