"""Draw synthetic posters and infographics: display type, light text on colour, shapes, icons, charts, textures.

    python -m training.nano.posters FONTS TO --pages 300

generates an evaluation set with `queries.jsonl`, in fonts and words that are not used in training.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

from training.nano import evaluation_set
from training.nano.sheet import Area, Sheet, Style, choose_text_colour, sample_colour, to_grey
from training.nano.synthetic_text import choose_font, group_families
from training.nano.text_generator import TextGenerator

Block = Callable[[Sheet, Area, TextGenerator, Style, random.Random], None]


def draw_heading(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> Area:
    """Draw a heading at the top of an area and return the remaining area."""
    left, top, right, bottom = area
    fill = rng.choice([c for c in style.accents if abs(to_grey(c) - style.back) > 80] or [style.ink])
    end = sheet.draw_text(
        (left, top, right, top + 0.4 * (bottom - top)),
        script.make_heading(),
        style.display,
        style.body * rng.uniform(1.3, 2.2),
        fill,
    )
    return left, end + 0.3 * style.body, right, bottom


def draw_paragraph(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw a heading and a paragraph."""
    left, top, right, bottom = draw_heading(sheet, area, script, style, rng)
    words = int(0.6 * (right - left) * (bottom - top) / (style.body**2 * 4.5))
    sheet.draw_text(
        (left, top, right, bottom), script.make_sentence(min(max(words, 4), 60)), style.plain, style.body, style.ink
    )


def draw_bullets(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw a heading and a bullet list."""
    left, top, right, bottom = draw_heading(sheet, area, script, style, rng)
    while top + 1.5 * style.body < bottom:
        sheet.draw_icon(
            left + 0.5 * style.body, top + 0.7 * style.body, 0.7 * style.body, rng.choice(style.accents), style.ink, rng
        )
        top = (
            sheet.draw_text(
                (left + 1.5 * style.body, top, right, bottom),
                script.make_sentence(rng.randint(2, 6)),
                style.plain,
                style.body,
                style.ink,
            )
            + 0.7 * style.body
        )


def draw_figure(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw a large number with a label."""
    left, top, right, bottom = area
    size = min(0.6 * (bottom - top), style.body * rng.uniform(3, 6))
    end = sheet.draw_text(
        (left, top, right, bottom),
        script.make_number(),
        style.display,
        size,
        choose_text_colour(style.back, rng),
        "centre",
    )
    sheet.draw_text(
        (left, end, right, bottom),
        script.make_label(),
        style.plain,
        style.body * rng.uniform(1, 1.5),
        style.ink,
        "centre",
    )


def draw_bars(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw a horizontal bar chart with labels and numbers."""
    left, top, right, bottom = draw_heading(sheet, area, script, style, rng)
    pitch = style.body * rng.uniform(1.6, 2.6)
    start = left + rng.uniform(0.25, 0.4) * (right - left)
    colour = rng.choice(style.accents)
    while top + pitch < bottom:
        length = rng.uniform(0.1, 0.8) * (right - start)
        sheet.draw.rectangle((start, top, start + length, top + 0.75 * pitch), fill=colour)
        sheet.draw_text(
            (left, top, start - 4, top + pitch), script.make_label(), style.plain, style.body, style.ink, "right"
        )
        inside = length > 4 * style.body and rng.random() < 0.5
        x = start + 4 if inside else start + length + 4
        fill = choose_text_colour(to_grey(colour), rng) if inside else style.ink
        sheet.draw_text((x, top, right, top + pitch), script.make_number(), style.plain, style.body, fill)
        top += pitch


def draw_columns(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw a column or line chart with numbers and labels."""
    left, top, right, bottom = draw_heading(sheet, area, script, style, rng)
    count = rng.randint(3, 6)
    base, step = bottom - 1.6 * style.body, (right - left) / count
    line = rng.random() < 0.4
    points = []
    for i in range(count):
        x, colour = left + i * step, rng.choice(style.accents)
        high = base - rng.uniform(0.15, 0.8) * max(base - top, 1)
        points.append((x + step / 2, high))
        if not line:
            sheet.draw.rectangle((x + 0.2 * step, high, x + 0.8 * step, base), fill=colour)
        sheet.draw_text(
            (x, high - 1.4 * style.body, x + step, high),
            script.make_number(),
            style.plain,
            0.9 * style.body,
            style.ink,
            "centre",
        )
        sheet.draw_text(
            (x + 2, base + 2, x + step - 2, bottom),
            script.make_label(),
            style.plain,
            0.9 * style.body,
            style.ink,
            "centre",
        )
    if line:
        sheet.draw.line(points, fill=rng.choice(style.accents), width=3)
    sheet.draw.line((left, base, right, base), fill=style.ink, width=1)


def draw_pie(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw a pie chart with a legend."""
    left, top, right, bottom = area
    size = min(bottom - top, 0.45 * (right - left))
    disc = (left, top, left + size, top + size)
    angle, row, pitch = rng.uniform(0, 360), top, 1.7 * style.body
    end = angle + 360
    while angle < end and row + pitch < bottom:
        part = min(rng.uniform(40, 130), end - angle)
        colour = rng.choice(style.accents)
        sheet.draw.pieslice(disc, angle, angle + part, fill=colour, outline=style.ink)
        middle = math.radians(angle + part / 2)
        x, y = left + size / 2 + 0.33 * size * math.cos(middle), top + size / 2 + 0.33 * size * math.sin(middle)
        if part > 50:
            sheet.draw_text(
                (x - 2 * style.body, y - 0.6 * style.body, x + 2 * style.body, y + style.body),
                script.make_number(),
                style.plain,
                0.9 * style.body,
                choose_text_colour(to_grey(colour), rng),
                "centre",
            )
        sheet.draw.rectangle((left + size + 12, row + 3, left + size + 24, row + 15), fill=colour)
        sheet.draw_text(
            (left + size + 30, row, right, row + pitch), script.make_label(), style.plain, style.body, style.ink
        )
        angle, row = angle + part, row + pitch


def draw_shapes(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw words in adjacent shapes, like the steps of a process."""
    left, top, right, bottom = area
    count = rng.randint(2, 4)
    step = (right - left) / count
    high = min(bottom - top, rng.uniform(3, 6) * style.body)
    for i in range(count):
        colour = rng.choice(style.accents)
        box = (left + (i + 0.14) * step, top + 0.2 * high, left + (i + 0.82) * step, top + high)
        sheet.draw_shape(box, colour, rng)
        text = script.make_number() if rng.random() < 0.2 else script.make_label()
        sheet.draw_text(
            box,
            text,
            style.display,
            style.body * rng.uniform(1, 1.6),
            choose_text_colour(to_grey(colour), rng),
            "centre",
            True,
        )
        under = (left + i * step + 4, top + 1.3 * high, left + (i + 1) * step - 4, bottom)
        sheet.draw_text(under, script.make_sentence(rng.randint(2, 8)), style.plain, style.body, style.ink, "centre")


def draw_icons(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw a row of icons with labels."""
    left, top, right, bottom = area
    size = min(0.5 * (bottom - top), rng.uniform(2, 5) * style.body)
    count = rng.randint(2, 5)
    step = (right - left) / count
    for i in range(count):
        sheet.draw_icon(left + (i + 0.5) * step, top + size / 2, size, rng.choice(style.accents), style.ink, rng)
        under = (left + i * step + 3, top + size + 3, left + (i + 1) * step - 3, bottom)
        sheet.draw_text(under, script.make_label(), style.plain, style.body, style.ink, "centre")


def draw_photograph(sheet: Sheet, area: Area, script: TextGenerator, style: Style, rng: random.Random) -> None:
    """Draw display type on a texture."""
    dark = rng.random() < 0.7
    low, high = ((0, 50), (60, 130)) if dark else ((150, 200), (215, 255))
    sheet.draw_texture(area, rng, sample_colour(rng, *low), sample_colour(rng, *high))
    left, top, right, bottom = area
    inner = (left + style.body, top + 0.5 * style.body, right - style.body, bottom - 0.5 * style.body)
    fill = (255, 255, 255) if dark else (15, 15, 15)
    sheet.draw_text(
        inner,
        script.make_heading() if rng.random() < 0.6 else script.make_sentence(rng.randint(3, 9)),
        style.display,
        style.body * rng.uniform(1.5, 3),
        fill,
        rng.choice(["left", "centre"]),
        True,
        rng.random() < 0.4,
    )


BLOCKS: tuple[Block, ...] = (
    draw_paragraph,
    draw_paragraph,
    draw_bullets,
    draw_figure,
    draw_bars,
    draw_columns,
    draw_pie,
    draw_shapes,
    draw_icons,
    draw_photograph,
)


def choose_style(
    rng: random.Random, fonts: tuple[str, ...], body: float, dark: float = 0.45
) -> tuple[Style, tuple[int, int, int]]:
    """Choose a style and its background colour; `dark` is the share of dark backgrounds."""
    back = sample_colour(rng, 0, 110) if rng.random() < dark else sample_colour(rng, 165, 255)
    if rng.random() < 0.25 and to_grey(back) > 128:
        back = (255, 255, 255)
    grey = to_grey(back)
    accents = tuple(sample_colour(rng, 0, 255) for _ in range(4))
    display = rng.choice(rng.choice(group_families(fonts)[1])) if rng.random() < 0.7 else choose_font(rng, fonts)
    return Style(display, choose_font(rng, fonts), body, grey, choose_text_colour(grey, rng), accents), back


def compose_poster(
    rng: random.Random, script: TextGenerator, fonts: tuple[str, ...], width: int, height: int, body: float
) -> Sheet:
    """Draw a poster of `width x height` pixels with body text of `body` pixels."""
    style, back = choose_style(rng, fonts, body)
    sheet = Sheet(width, height, back)
    if rng.random() < 0.35:  # a low-contrast background texture
        other = tuple(min(255, max(0, c + rng.choice([-1, 1]) * rng.randint(5, 30))) for c in back)
        sheet.draw_texture((0, 0, width, height), rng, back, other)  # type: ignore[arg-type]
    margin = width * rng.uniform(0.03, 0.07)
    band, ink = height * rng.uniform(0.1, 0.25), style.ink
    if rng.random() < 0.6:
        colour = rng.choice(style.accents)
        if rng.random() < 0.3:
            sheet.draw_texture((0, 0, width, band), rng, sample_colour(rng, 0, 30), sample_colour(rng, 50, 110))
            ink = (255, 255, 255)
        else:
            sheet.draw.rectangle((0, 0, width, band), fill=colour)
            ink = choose_text_colour(to_grey(colour), rng)
    align = rng.choice(["left", "centre"])
    sheet.draw_text(
        (margin, 0.1 * band, width - margin, 0.9 * band),
        script.make_title(),
        style.display,
        width * rng.uniform(0.06, 0.14),
        ink,
        align,
        True,
        rng.random() < 0.15,
    )
    y = band + margin
    while y < height - 6 * body:
        tall = min(rng.uniform(8, 18) * body, height - margin / 2 - y)
        across = rng.choice([1, 2, 2, 3]) if width > 35 * body else rng.choice([1, 1, 2])
        step = (width - 2 * margin) / across
        for i in range(across):
            area = (margin + i * step, y, margin + (i + 1) * step - (margin / 2 if i < across - 1 else 0), y + tall)
            inner, here = area, style
            if rng.random() < 0.3:  # a panel in another colour
                panel = sample_colour(rng, 0, 120) if rng.random() < 0.5 else sample_colour(rng, 160, 255)
                sheet.draw.rounded_rectangle(area, radius=rng.choice([0, body]), fill=panel)
                grey = to_grey(panel)
                here = Style(style.display, style.plain, body, grey, choose_text_colour(grey, rng), style.accents)
                inner = (area[0] + body, area[1] + 0.7 * body, area[2] - body, area[3] - 0.7 * body)
            rng.choice(BLOCKS)(sheet, inner, script, here, rng)
        y += tall + rng.uniform(0.5, 1.5) * body
    return sheet


def draw_poster(rng: random.Random, script: TextGenerator, fonts: tuple[str, ...]) -> Sheet:
    """Draw a poster of the evaluation set: 1.6 million pixels, from landscape to three times as high as wide."""
    aspect = math.exp(rng.uniform(math.log(0.6), math.log(3)))
    width, height = (round((1_600_000 * a) ** 0.5) for a in (1 / aspect, aspect))
    return compose_poster(rng, script, fonts, width, height, rng.uniform(15, 26))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    evaluation_set.run_cli(parser, draw_poster, "poster")


if __name__ == "__main__":
    main()
