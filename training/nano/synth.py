"""Synthetic text without end: fonts, sizes, colours, rules and dirt, with every character's box."""

from __future__ import annotations

import functools
import io
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from anchorfold.backbones.nano.text import CHARACTERS, LETTERS, fold_character

DECORATIVE = ("aenigma", "larabie", "dseg", "f500", "junction", "bwht", "cabinsketch", "creep", "engadget", "spleen")
ORDINARY = (
    "liberation", "urw-base35", "dejavu", "cmu", "lmodern", "crosextra", "roboto", "open-sans", "lato", "noto",
    "freefont", "linuxlibertine", "ebgaramond", "croscore", "texgyre", "gyre", "stix", "cantarell", "inconsolata",
    "firacode", "hack", "clear-sans", "go", "b612", "league", "comfortaa", "junicode", "gentium", "sil", "charis",
    "adf", "arkpandora",
)  # fmt: skip


def latin_fonts(folder: Path, held_out: bool = False) -> tuple[str, ...]:
    """Fonts that can print English. One family in ten is kept for measuring unseen fonts."""
    listing = folder / "latin.txt"
    if not listing.exists():
        from fontTools.ttLib import TTFont, TTLibError

        good = []
        for path in sorted(folder.glob("*")):
            if path.suffix.lower() not in (".ttf", ".otf"):
                continue
            try:
                with TTFont(path, lazy=True) as font:
                    cmap = font.getBestCmap() or {}
                if all(ord(c) in cmap for c in LETTERS + LETTERS[:26].upper() + ".,-()"):
                    glyphs = ImageFont.truetype(str(path), 24)
                    widths = {glyphs.getlength(c) for c in "imw1"}
                    ink = [np.asarray(glyphs.getmask(c)).sum() for c in "aeginorst"]
                    if min(ink) > 0 and max(widths) < 48:
                        good.append(path.name)
            except (TTLibError, OSError, ValueError, AssertionError, KeyError):
                continue
        listing.write_text("\n".join(good))
    names = [n for n in listing.read_text().split("\n") if not any(word in n.split("--")[0] for word in DECORATIVE)]
    return tuple(str(folder / n) for n in names if (sum(n.split("--")[0].encode()) % 10 == 0) == held_out)


@functools.lru_cache(8)
def font_families(fonts: tuple[str, ...]) -> tuple[list[list[str]], list[list[str]]]:
    """Fonts by family: those that offices and publishers use, and all."""
    families: dict[str, list[str]] = {}
    for path in fonts:
        families.setdefault(Path(path).name.split("--")[0].removeprefix("fonts-"), []).append(path)
    ordinary = [f for name, f in families.items() if name.startswith(ORDINARY)]
    return ordinary or list(families.values()), list(families.values())


def choose_font(rng: random.Random, fonts: tuple[str, ...]) -> str:
    ordinary, every = font_families(fonts)
    return rng.choice(rng.choice(ordinary if rng.random() < 0.65 else every))


@functools.lru_cache(512)
def load_font(path: str, size: int) -> ImageFont.FreeTypeFont:
    """A font at a size; the empty path is Pillow's own font."""
    return ImageFont.truetype(path, size) if path else ImageFont.load_default(size)  # type: ignore[return-value]


@functools.lru_cache(100_000)
def letter_width(font: ImageFont.FreeTypeFont, character: str) -> float:
    """Pixels that a character takes when it stands alone."""
    return font.getlength(character)


def line_extent(font: ImageFont.FreeTypeFont) -> tuple[float, float]:
    """Pixels above and below the baseline that a line takes; some fonts claim far more than their letters need."""
    above, below = font.getmetrics()
    return min(above, 1.1 * font.size), min(below, 0.35 * font.size)


def random_word(rng: random.Random, vocabulary: list[str]) -> str:
    kind = rng.random()
    if kind < 0.68:
        word = vocabulary[int(len(vocabulary) * rng.random() ** 2.2)]
    elif kind < 0.80:
        word = "".join(rng.choice(LETTERS[:26]) for _ in range(rng.randint(2, 10)))
    elif kind < 0.95:
        digits = str(rng.randint(0, 10 ** rng.randint(1, 7)))
        word = rng.choice(
            [digits, digits, f"{rng.randint(0, 99)}.{rng.randint(0, 99)}", f"{rng.randint(1950, 2040)}", f"{digits}%"]
        )
    else:
        word = "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(1, 6)))
    case = rng.random()
    word = word.capitalize() if case < 0.2 else word.upper() if case < 0.32 else word
    if rng.random() < 0.12:
        word += rng.choice(".,:;)!?")
    if rng.random() < 0.03:
        word = rng.choice("(\"'[<#$") + word
    return word


def draw_block(
    draw: ImageDraw.ImageDraw, rng: random.Random, font: ImageFont.FreeTypeFont, words: Iterator[str],
    area: tuple[int, int, int, int], ink: int, symbols: list[str], boxes: list[tuple[float, float, float, float]],
    ragged: float = 0.3,
) -> None:  # fmt: skip
    """Fill an area with lines of one font, as long as there are words; note each character and its box.

    A share of the blocks is `ragged`: lines begin anywhere and words lie apart, as in tables.
    """
    left, top, right, bottom = area
    size = font.size
    ascent, descent = line_extent(font)
    pitch = (ascent + descent) * rng.uniform(0.95, 1.5)
    space = font.getlength(" ") * rng.uniform(0.9, 1.6) or size * 0.3
    y = top + ascent
    loose = rng.random() < ragged
    while y + descent < bottom:
        x = left + rng.uniform(0, 0.3 * (right - left) if loose else 4)
        while x < right:
            word = next(words, "")
            width = font.getlength(word)
            if not word or x + width > right:
                break
            draw.text((x, y), word, fill=ink, font=font, anchor="ls")
            alone = [letter_width(font, character) for character in word]
            # Kerning moves letters by less than a label's width: it is spread over the word.
            edges = [e * width / (sum(alone) or 1) for e in itertools.accumulate(alone, initial=0.0)]
            for i, character in enumerate(word):
                symbol = fold_character(character)
                if symbol:
                    symbols.append(symbol[0])
                    boxes.append((x + edges[i], y - ascent, x + edges[i + 1], y + descent))
            x += width + space * (rng.uniform(2, 8) if loose and rng.random() < 0.3 else 1)
        y += pitch


def make_crop(
    rng: random.Random, fonts: tuple[str, ...], vocabulary: list[str], height: int, width: int
) -> tuple[Image.Image, str, np.ndarray]:
    """A piece of an invented page: image `(height, width)`, its symbols and their boxes `(n, 4)` in pixels."""
    dark = rng.random() < 0.22
    paper, ink = (rng.randint(0, 90), rng.randint(170, 255)) if dark else (rng.randint(185, 255), rng.randint(0, 110))
    if rng.random() < 0.5 and not dark:
        paper, ink = 255, 0
    image = Image.new("L", (width, height), paper)
    draw = ImageDraw.Draw(image)
    symbols: list[str] = []
    boxes: list[tuple[float, float, float, float]] = []
    y = rng.randint(0, 20)
    while y < height - 10:
        tall = rng.randint(16, max(17, height // 2))
        splits = sorted(rng.sample(range(60, width - 60, 10), rng.choice([0, 0, 1, 2]))) if width > 300 else []
        for a, b in zip([0, *splits], [*splits, width], strict=True):
            colour, back = ink, paper
            if rng.random() < 0.15:
                back = 255 - paper if rng.random() < 0.5 else rng.randint(0, 255)
                colour = rng.randint(0, max(back - 110, 0)) if back > 127 else rng.randint(min(back + 110, 255), 255)
                draw.rectangle((a, y, b, y + tall), fill=back)
            if rng.random() < 0.12:
                draw.rectangle((a, y, b - 2, y + tall), outline=colour)
            if rng.random() < 0.9:
                area = (a + rng.randint(1, 12), y, b - 2, y + tall)
                size = round(min(8 * 2 ** rng.expovariate(1 / 0.75), 60))
                font = load_font(choose_font(rng, fonts), size)
                words = (random_word(rng, vocabulary) for _ in itertools.count())
                draw_block(draw, rng, font, words, area, colour, symbols, boxes)
        y += tall + rng.randint(0, 16)
        if rng.random() < 0.1:
            draw.line((0, y, width, y), fill=ink)
            y += 3
    return image, "".join(symbols), np.array(boxes, np.float32).reshape(-1, 4)


def set_text(
    rng: random.Random, fonts: tuple[str, ...], words: list[str], height: int, width: int
) -> tuple[Image.Image, str, np.ndarray]:
    """Words in their order as a plain page, black on white, one font of 11 to 24 pixels; as `make_crop` returns it.

    A word that does not fit at the end of a line is left out.
    """
    image = Image.new("L", (width, height), 255)
    symbols: list[str] = []
    boxes: list[tuple[float, float, float, float]] = []
    font = load_font(choose_font(rng, fonts), rng.randint(11, 24))
    text = ((w.capitalize() if rng.random() < 0.15 else w) + ("," if rng.random() < 0.1 else "") for w in words)
    area = (32, 24, width - 32, height - 24)
    draw_block(ImageDraw.Draw(image), rng, font, text, area, 0, symbols, boxes, ragged=0.0)
    return image, "".join(symbols), np.array(boxes, np.float32).reshape(-1, 4)


def degrade(image: Image.Image, rng: random.Random) -> Image.Image:
    """Scanner's dirt: blur, uneven light, noise, JPEG. Half of the images stay clean."""
    if rng.random() < 0.5:
        return image
    if rng.random() < 0.4:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.9)))
    if rng.random() < 0.4:
        pixels = np.asarray(image, np.float32)
        noise = np.random.default_rng(rng.getrandbits(32))
        light = np.linspace(rng.uniform(0.75, 1.05), rng.uniform(0.75, 1.05), pixels.shape[1], dtype=np.float32)
        pixels = pixels * light + noise.normal(0, rng.uniform(1, 16), pixels.shape).astype(np.float32)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    if rng.random() < 0.5:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(25, 90))
        image = Image.open(buffer).convert("L")
    return image
