"""Draw synthetic text in many fonts, sizes and colours, with the box of every character."""

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


def list_fonts(folder: Path, held_out: bool = False) -> tuple[str, ...]:
    """List fonts with Latin letters; one family in ten is held out for evaluation."""
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
def group_families(fonts: tuple[str, ...]) -> tuple[list[list[str]], list[list[str]]]:
    """Group fonts by family: ordinary text fonts, and all."""
    families: dict[str, list[str]] = {}
    for path in fonts:
        families.setdefault(Path(path).name.split("--")[0].removeprefix("fonts-"), []).append(path)
    ordinary = [f for name, f in families.items() if name.startswith(ORDINARY)]
    return ordinary or list(families.values()), list(families.values())


def choose_font(rng: random.Random, fonts: tuple[str, ...]) -> str:
    """Choose a font, mostly an ordinary text font."""
    ordinary, every = group_families(fonts)
    return rng.choice(rng.choice(ordinary if rng.random() < 0.65 else every))


@functools.lru_cache(512)
def load_font(path: str, size: int) -> ImageFont.FreeTypeFont:
    """Load a font; the empty path is the default font of Pillow."""
    return ImageFont.truetype(path, size) if path else ImageFont.load_default(size)  # type: ignore[return-value]


@functools.lru_cache(100_000)
def measure_character(font: ImageFont.FreeTypeFont, character: str) -> float:
    """Measure the advance width of a single character in pixels."""
    return font.getlength(character)


def measure_line(font: ImageFont.FreeTypeFont) -> tuple[float, float]:
    """Measure ascent and descent in pixels, limited because some fonts declare far more than their letters need."""
    above, below = font.getmetrics()
    return min(above, 1.1 * font.size), min(below, 0.35 * font.size)


def sample_word(rng: random.Random, vocabulary: list[str]) -> str:
    """Sample a word, number or random string, with random case and punctuation."""
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
    """Fill an area with lines of one font until the words end, and record each character and its box.

    A share `ragged` of the blocks is set like a table: lines start anywhere and words are spaced apart.
    """
    left, top, right, bottom = area
    size = font.size
    ascent, descent = measure_line(font)
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
            alone = [measure_character(font, character) for character in word]
            # Kerning is smaller than the label resolution: distribute it over the word.
            edges = [e * width / (sum(alone) or 1) for e in itertools.accumulate(alone, initial=0.0)]
            for i, character in enumerate(word):
                symbol = fold_character(character)
                if symbol:
                    symbols.append(symbol[0])
                    boxes.append((x + edges[i], y - ascent, x + edges[i + 1], y + descent))
            x += width + space * (rng.uniform(2, 8) if loose and rng.random() < 0.3 else 1)
        y += pitch


def draw_page(
    rng: random.Random, fonts: tuple[str, ...], vocabulary: list[str], height: int, width: int
) -> tuple[Image.Image, str, np.ndarray]:
    """Draw part of a synthetic page: image `(height, width)`, symbols and their boxes `(n, 4)` in pixels."""
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
                words = (sample_word(rng, vocabulary) for _ in itertools.count())
                draw_block(draw, rng, font, words, area, colour, symbols, boxes)
        y += tall + rng.randint(0, 16)
        if rng.random() < 0.1:
            draw.line((0, y, width, y), fill=ink)
            y += 3
    return image, "".join(symbols), np.array(boxes, np.float32).reshape(-1, 4)


def typeset(
    rng: random.Random, fonts: tuple[str, ...], words: list[str], height: int, width: int
) -> tuple[Image.Image, str, np.ndarray]:
    """Typeset words in order, black on white, in one font of 11 to 24 pixels; return values as of `draw_page`.

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
    """Apply blur, uneven lighting, noise and JPEG compression to half of the images."""
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
