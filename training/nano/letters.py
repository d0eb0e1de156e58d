"""Typed and printed letters: the words of a real page set anew, as a typewriter or an office printer would.

A typewriter strikes unevenly: letters stand a little high or low, dark or faint. Text keeps its order, so that
neighbours help to read a worn word, as they do on real letters.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from anchorfold.backbones.nano.text import fold_character
from training.nano.synth import choose_font, line_extent, load_font

TYPEWRITERS = ("mono", "courier", "typewriter", "cmtt", "lmtt", "cousine", "inconsolata", "hack", "tt10", "nimbusmon")
TYPED = 0.6  # of the letters come from a typewriter


def typewriter_fonts(fonts: tuple[str, ...]) -> tuple[str, ...]:
    """Fonts whose name says that all letters are equally wide; all fonts if there are none."""
    return tuple(f for f in fonts if any(t in f.rsplit("/", 1)[-1].lower() for t in TYPEWRITERS)) or fonts


def letter(
    rng: random.Random, fonts: tuple[str, ...], typewriters: tuple[str, ...], words: Sequence[str], height: int,
    width: int,
) -> tuple[Image.Image, str, np.ndarray]:  # fmt: skip
    """A piece of a letter in grey, black on white: image `(height, width)`, symbols, their boxes `(n, 4)` in pixels.

    Words are taken in their order, again and again if they are few, until the piece is full.
    """
    typed = rng.random() < TYPED
    font = load_font(rng.choice(typewriters) if typed else choose_font(rng, fonts), rng.randint(9, 20))
    image = Image.new("L", (width, height), 255)
    draw = ImageDraw.Draw(image)
    ascent, descent = line_extent(font)
    pitch = (ascent + descent) * rng.choice([1.0, 1.15, 1.5, 2.0])
    space = font.getlength(" ") or 0.3 * font.size
    margin, right = rng.uniform(0, 0.12) * width, width * rng.uniform(0.85, 1.0)
    strike = (rng.uniform(0, 0.06) * font.size, rng.randint(20, 110)) if typed else (0.0, 0)
    symbols: list[str] = []
    boxes: list[tuple[float, float, float, float]] = []
    x, y = margin + rng.choice([0, 0.5]) * (right - margin), rng.uniform(0, 2) * pitch + ascent
    for word in itertools.cycle(written(words, rng)):
        wide = font.getlength(word)
        if x + wide > right or rng.random() < 0.02:  # now and then a line ends early, as where a paragraph does
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


def written(words: Sequence[str], rng: random.Random) -> list[str]:
    """Words as they stand in a letter: capitals at the beginning of sentences and of names, stops, commas, shouting."""
    text, first = [], True
    shouting = rng.random() < 0.1
    for word in words:
        mark = rng.choices(["", ".", ",", ":", ")"], [80, 7, 9, 2, 2])[0]
        shown = word.upper() if shouting or rng.random() < 0.03 else word
        text.append((shown[:1].upper() + shown[1:] if first or rng.random() < 0.08 else shown) + mark)
        first = mark == "."
    return text
