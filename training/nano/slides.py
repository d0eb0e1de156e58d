"""Draw synthetic slides: large type, few words, dark themes, footers.

    python -m training.nano.slides FONTS TO --pages 300

generates an evaluation set with `queries.jsonl`, in fonts and words that are not used in training.
"""

from __future__ import annotations

import argparse
import random

from training.nano import evaluation_set
from training.nano.posters import BLOCKS, choose_style
from training.nano.sheet import Sheet, Style, choose_text_colour, sample_colour, to_grey
from training.nano.text_generator import TextGenerator


def compose_slide(
    rng: random.Random, script: TextGenerator, fonts: tuple[str, ...], width: int, height: int, body: float
) -> Sheet:
    """Draw a slide of `width x height` pixels with body text of `body` pixels."""
    style, back = choose_style(rng, fonts, body, dark=0.6)
    sheet = Sheet(width, height, back)
    if rng.random() < 0.25:
        low, high = ((0, 40), (50, 110)) if to_grey(back) < 128 else ((170, 210), (220, 255))
        sheet.draw_texture((0, 0, width, height), rng, sample_colour(rng, *low), sample_colour(rng, *high))
        style = Style(
            style.display, style.plain, body, style.back, choose_text_colour(style.back, rng, 140), style.accents
        )
    margin, ink = width * rng.uniform(0.04, 0.1), style.ink
    head = height * rng.uniform(0.14, 0.26)
    if rng.random() < 0.3:
        colour = rng.choice(style.accents)
        sheet.draw.rectangle((0, 0, width, head), fill=colour)
        ink = choose_text_colour(to_grey(colour), rng)
    align = rng.choice(["left", "left", "centre"])
    if rng.random() < 0.12:  # section title
        sheet.draw_text(
            (margin, 0.25 * height, width - margin, 0.75 * height),
            script.make_title(),
            style.display,
            height * rng.uniform(0.1, 0.18),
            style.ink,
            align,
            True,
        )
        return sheet
    sheet.draw_text(
        (margin, 0.1 * head, width - margin, 0.95 * head),
        script.make_title(),
        style.display,
        height * rng.uniform(0.07, 0.12),
        ink,
        align,
        True,
    )
    top, bottom = head + 0.06 * height, height * 0.92
    split = rng.random() < 0.45
    middle = width * rng.uniform(0.4, 0.6) if split else width - margin
    y = top
    for _ in range(rng.randint(2, 6)):
        if y + 1.5 * body > bottom:
            break
        mark = rng.choice(["", "-", "*", "dot"])
        x = margin + (1.4 * body if mark else 0)
        if mark == "dot":
            sheet.draw.ellipse(
                (margin, y + 0.4 * body, margin + 0.5 * body, y + 0.9 * body), fill=rng.choice(style.accents)
            )
        text = script.make_heading() if rng.random() < 0.35 else script.make_sentence(rng.randint(2, 8))
        y = sheet.draw_text((x, y, middle, bottom), text, style.plain, body, style.ink) + rng.uniform(0.6, 1.2) * body
    if split:
        small = Style(style.display, style.plain, 0.75 * body, style.back, style.ink, style.accents)
        rng.choice(BLOCKS[3:])(sheet, (middle + 0.6 * margin, top, width - margin, bottom), script, small, rng)
    if rng.random() < 0.5:
        sheet.draw_text(
            (margin, 0.94 * height, width - margin, height),
            script.make_sentence(3),
            style.plain,
            0.5 * body,
            style.ink,
            rng.choice(["left", "right"]),
        )
    return sheet


def draw_slide(rng: random.Random, script: TextGenerator, fonts: tuple[str, ...]) -> Sheet:
    """Draw a slide of the evaluation set: 16:9 or 4:3."""
    width, height = rng.choice([(1440, 810), (1280, 960)])
    return compose_slide(rng, script, fonts, width, height, height * rng.uniform(0.035, 0.065))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    evaluation_set.run_cli(parser, draw_slide, "slide")


if __name__ == "__main__":
    main()
