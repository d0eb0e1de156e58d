"""Draw typed and printed letters with the words of a real page.

Typewriters print unevenly: characters are shifted vertically and vary in darkness. The order of the words is kept, so
that context helps with damaged words, as in real letters.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from anchorfold.backbones.nano.text import fold_character
from training.nano.synthetic_text import choose_font, load_font, measure_line

TYPEWRITERS = ("mono", "courier", "typewriter", "cmtt", "lmtt", "cousine", "inconsolata", "hack", "tt10", "nimbusmon")
TYPEWRITER_SHARE = 0.6


def select_typewriter_fonts(fonts: tuple[str, ...]) -> tuple[str, ...]:
    """Select monospaced fonts by name; all fonts if there are none."""
    return tuple(f for f in fonts if any(t in f.rsplit("/", 1)[-1].lower() for t in TYPEWRITERS)) or fonts


def draw_letter(
    rng: random.Random, fonts: tuple[str, ...], typewriters: tuple[str, ...], words: Sequence[str], height: int,
    width: int,
) -> tuple[Image.Image, str, np.ndarray]:  # fmt: skip
    """Draw part of a letter, black on white.

    Words are used in their order, repeatedly if there are few, until the area is full.

    Returns:
        Image of `height x width` pixels, symbols, and their boxes `(n, 4)` in pixels.
    """
    typed = rng.random() < TYPEWRITER_SHARE
    font = load_font(rng.choice(typewriters) if typed else choose_font(rng, fonts), rng.randint(9, 20))
    image = Image.new("L", (width, height), 255)
    draw = ImageDraw.Draw(image)
    ascent, descent = measure_line(font)
    pitch = (ascent + descent) * rng.choice([1.0, 1.15, 1.5, 2.0])
    space = font.getlength(" ") or 0.3 * font.size
    margin, right = rng.uniform(0, 0.12) * width, width * rng.uniform(0.85, 1.0)
    strike = (rng.uniform(0, 0.06) * font.size, rng.randint(20, 110)) if typed else (0.0, 0)
    symbols: list[str] = []
    boxes: list[tuple[float, float, float, float]] = []
    x, y = margin + rng.choice([0, 0.5]) * (right - margin), rng.uniform(0, 2) * pitch + ascent
    for word in itertools.cycle(punctuate(words, rng)):
        wide = font.getlength(word)
        if x + wide > right or rng.random() < 0.02:  # some lines end early, like those of a paragraph
            x, y = margin, y + pitch * (1 if rng.random() < 0.93 else 2)
        if y + descent > height:
            break
        if x + wide > right:
            continue  # wider than a line
        for character in word:
            step = font.getlength(character)
            ink = rng.randint(0, strike[1])
            draw.text((x, y + rng.gauss(0, strike[0])), character, fill=ink, font=font, anchor="ls")
            if symbol := fold_character(character):
                symbols.append(symbol[0])
                boxes.append((x, y - ascent, x + step, y + descent))
            x += step
        x += space
    return image, "".join(symbols), np.array(boxes, np.float32).reshape(-1, 4)


def punctuate(words: Sequence[str], rng: random.Random) -> list[str]:
    """Add capitals and punctuation to words; some texts are in upper case."""
    text, first = [], True
    upper_case = rng.random() < 0.1
    for word in words:
        mark = rng.choices(["", ".", ",", ":", ")"], [80, 7, 9, 2, 2])[0]
        shown = word.upper() if upper_case or rng.random() < 0.03 else word
        text.append((shown[:1].upper() + shown[1:] if first or rng.random() < 0.08 else shown) + mark)
        first = mark == "."
    return text
