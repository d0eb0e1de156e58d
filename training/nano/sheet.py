"""Canvas of synthetic posters and slides, which records the characters drawn on it."""

from __future__ import annotations

import colorsys
import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from anchorfold.backbones.nano.text import fold_character
from training.nano.synthetic_text import load_font, measure_character

Colour = tuple[int, int, int]
Area = tuple[float, float, float, float]  # left, top, right, bottom in pixels


def to_grey(colour: Colour) -> float:
    """Convert a colour to grey, 0 to 255."""
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def sample_colour(rng: random.Random, low: float, high: float) -> Colour:
    """Sample a colour whose grey value is between `low` and `high` (0 to 255)."""
    while True:
        r, g, b = colorsys.hsv_to_rgb(rng.random(), rng.random() ** 0.7, rng.uniform(0.05, 1))
        colour = (round(255 * r), round(255 * g), round(255 * b))
        if low <= to_grey(colour) <= high:
            return colour


def choose_text_colour(back: float, rng: random.Random, contrast: float = 95) -> Colour:
    """Choose a text colour for a background of grey `back`: mostly black or white, else one of sufficient contrast."""
    light = back < 128
    if rng.random() < 0.6:
        return (255, 255, 255) if light else (rng.choice([0, 20, 40]),) * 3
    return (
        sample_colour(rng, min(back + contrast, 235), 255) if light else sample_colour(rng, 0, max(back - contrast, 20))
    )


@dataclass(frozen=True)
class Style:
    """Typography and colours of a sheet.

    Attributes:
        display: Font file of titles.
        plain: Font file of body text.
        body: Body size in pixels.
        back: Grey value of the background.
        ink: Text colour.
        accents: Accent colours.
    """

    display: str
    plain: str
    body: float
    back: float
    ink: Colour
    accents: tuple[Colour, ...]


class Sheet:
    """RGB image that records every character drawn on it with its box."""

    def __init__(self, width: int, height: int, colour: Colour) -> None:
        self.image = Image.new("RGB", (width, height), colour)
        self.draw = ImageDraw.Draw(self.image)
        self.symbols: list[str] = []
        self.boxes: list[Area] = []

    def export_labels(self) -> tuple[Image.Image, str, np.ndarray]:
        """Return the image, its symbols and their boxes `(n, 4)` in pixels."""
        return self.image, "".join(self.symbols), np.array(self.boxes, np.float32).reshape(-1, 4)

    def draw_line(
        self, x: float, y: float, text: str, font: ImageFont.FreeTypeFont, fill: Colour, shadow: bool = False
    ) -> None:
        """Draw a line of text from `x` on the baseline `y`."""
        ascent, descent = font.getmetrics()
        ascent, descent = min(ascent, round(1.1 * font.size)), min(descent, round(0.35 * font.size))
        for word in text.split():
            if shadow:
                dark = (0, 0, 0) if to_grey(fill) > 128 else (255, 255, 255)
                self.draw.text((x + font.size / 14, y + font.size / 14), word, fill=dark, font=font, anchor="ls")
            self.draw.text((x, y), word, fill=fill, font=font, anchor="ls")
            width = font.getlength(word)
            alone = [measure_character(font, character) for character in word]
            edges = [e * width / (sum(alone) or 1) for e in itertools.accumulate(alone, initial=0.0)]
            for i, character in enumerate(word):
                if symbol := fold_character(character):
                    self.symbols.append(symbol[0])
                    self.boxes.append((x + edges[i], y - ascent, x + edges[i + 1], y + descent))
            x += width + (font.getlength(" ") or font.size * 0.3)

    def draw_text(
        self,
        area: Area,
        text: str,
        path: str,
        size: float,
        fill: Colour,
        align: str = "left",
        middle: bool = False,
        shadow: bool = False,
    ) -> float:
        """Draw wrapped text in an area, reducing the size down to 9 pixels if necessary.

        Text that does not fit at 9 pixels is not drawn.

        Returns:
            The lower end of the text.
        """
        left, top, right, bottom = area
        while True:
            font = load_font(path, max(round(size), 9))
            pitch = font.size * 1.22
            lines = wrap_text(text, font, right - left)
            if lines is not None and len(lines) * pitch <= bottom - top:
                break
            if font.size == 9:
                return top
            size = font.size * 0.88
        y = top + (0.5 * (bottom - top - len(lines) * pitch) if middle else 0) + font.size * 0.95
        for line in lines:
            spare = right - left - font.getlength(line)
            x = left + {"left": 0.0, "centre": 0.5 * spare, "right": spare}[align]
            self.draw_line(x, y, line, font, fill, shadow)
            y += pitch
        return y - font.size * 0.7

    def draw_texture(self, area: Area, rng: random.Random, dark: Colour, light: Colour) -> None:
        """Draw a gradient, stripes or a cloud texture between two colours."""
        left, top, right, bottom = (round(v) for v in area)
        width, height = max(right - left, 1), max(bottom - top, 1)
        kind = rng.random()
        if kind < 0.35:
            angle = rng.uniform(0, math.tau)
            y, x = np.mgrid[0:height, 0:width].astype(np.float32)
            mix = math.cos(angle) * x / width + math.sin(angle) * y / height
        elif kind < 0.5:
            y, x = np.mgrid[0:height, 0:width].astype(np.float32)
            mix = np.sin((x * rng.uniform(-1, 1) + y) / rng.uniform(4, 40))
        else:
            noise = np.random.default_rng(rng.getrandbits(32))
            mix = np.zeros((height, width), np.float32)
            for cells in (3, 8, 24, 80):
                small = Image.fromarray(noise.random((cells, cells), np.float32))
                mix += np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)) * 3 / cells**0.7
        mix = (mix - mix.min()) / max(float(mix.max() - mix.min()), 1e-6)
        colours = np.array(dark) + mix[..., None] * (np.array(light) - np.array(dark))
        self.image.paste(Image.fromarray(colours.astype(np.uint8)), (left, top))

    def draw_shape(self, area: Area, fill: Colour, rng: random.Random) -> None:
        """Draw a box, rounded box, disc, hexagon, arrow or speech bubble as a background for words."""
        left, top, right, bottom = area
        width, height = right - left, bottom - top
        match rng.randrange(6):
            case 0:
                self.draw.rectangle(area, fill=fill)
            case 1:
                self.draw.rounded_rectangle(area, radius=0.2 * min(width, height), fill=fill)
            case 2:
                self.draw.ellipse(
                    (left - 0.1 * width, top - 0.2 * height, right + 0.1 * width, bottom + 0.2 * height), fill=fill
                )
            case 3:
                side = 0.15 * width
                self.draw.polygon(
                    [
                        (left, top),
                        (right, top),
                        (right + side, top + height / 2),
                        (right, bottom),
                        (left, bottom),
                        (left - side, top + height / 2),
                    ],
                    fill=fill,
                )
            case 4:
                self.draw.polygon(
                    [
                        (left, top),
                        (right, top),
                        (right + 0.5 * height, top + height / 2),
                        (right, bottom),
                        (left, bottom),
                    ],
                    fill=fill,
                )
            case _:
                self.draw.rounded_rectangle(area, radius=0.15 * min(width, height), fill=fill)
                x = left + 0.3 * width
                self.draw.polygon(
                    [(x, bottom - 1), (x + 0.2 * height, bottom - 1), (x, bottom + 0.25 * height)], fill=fill
                )

    def draw_icon(self, x: float, y: float, size: float, fill: Colour, back: Colour, rng: random.Random) -> None:
        """Draw an icon centred at (`x`, `y`): a person, a cup, a star or random shapes."""
        half = size / 2
        match rng.randrange(4):
            case 0:
                self.draw.ellipse((x - 0.4 * half, y - half, x + 0.4 * half, y - 0.2 * half), fill=fill)
                self.draw.rounded_rectangle(
                    (x - 0.6 * half, y - 0.15 * half, x + 0.6 * half, y + half), 0.3 * half, fill=fill
                )
            case 1:
                self.draw.ellipse((x - half, y - half, x + half, y + half), fill=fill)
                self.draw.rectangle((x - 0.4 * half, y - 0.4 * half, x + 0.5 * half, y + 0.4 * half), fill=back)
                self.draw.arc((x - 0.9 * half, y - 0.3 * half, x, y + 0.6 * half), 40, 320, fill=back, width=3)
            case 2:
                points = [
                    (x + r * math.sin(k * math.pi / 5), y - r * math.cos(k * math.pi / 5))
                    for k, r in enumerate(itertools.islice(itertools.cycle((half, 0.45 * half)), 10))
                ]
                self.draw.polygon(points, fill=fill)
            case _:
                for _ in range(rng.randint(3, 6)):
                    a, b = rng.uniform(-half, half / 2), rng.uniform(-half, half / 2)
                    box = (x + a, y + b, x + a + rng.uniform(0.2, 0.9) * half, y + b + rng.uniform(0.2, 0.9) * half)
                    rng.choice([self.draw.ellipse, self.draw.rectangle])(box, fill=rng.choice([fill, fill, back]))


def wrap_text(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str] | None:
    """Wrap text to lines of at most `width` pixels; None if a word is wider."""
    lines: list[str] = []
    for word in text.split():
        if font.getlength(word) > width:
            return None
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines
