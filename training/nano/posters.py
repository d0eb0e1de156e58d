"""Invented posters and infographics: display type, white on colour, words in shapes, icons, charts, columns, textures.

    python -m training.nano.posters FONTS TO --pages 300

makes a measuring set (fonts and words that training never drew) with `queries.jsonl`; training draws its own.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

from training.nano import measuring_set
from training.nano.script import Script
from training.nano.sheet import Area, Sheet, Style, grey_of, readable_on, some_colour
from training.nano.synth import choose_font, font_families

Block = Callable[[Sheet, Area, Script, Style, random.Random], None]


def heading(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> Area:
    """A heading at the top of an area; what is left below it."""
    left, top, right, bottom = area
    fill = rng.choice([c for c in style.accents if abs(grey_of(c) - style.back) > 80] or [style.ink])
    end = sheet.write(
        (left, top, right, top + 0.4 * (bottom - top)),
        script.heading(),
        style.display,
        style.body * rng.uniform(1.3, 2.2),
        fill,
    )
    return left, end + 0.3 * style.body, right, bottom


def paragraph(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """A heading and a text under it."""
    left, top, right, bottom = heading(sheet, area, script, style, rng)
    words = int(0.6 * (right - left) * (bottom - top) / (style.body**2 * 4.5))
    sheet.write((left, top, right, bottom), script.sentence(min(max(words, 4), 60)), style.plain, style.body, style.ink)


def bullets(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """A heading and short lines with marks."""
    left, top, right, bottom = heading(sheet, area, script, style, rng)
    while top + 1.5 * style.body < bottom:
        sheet.icon(
            left + 0.5 * style.body, top + 0.7 * style.body, 0.7 * style.body, rng.choice(style.accents), style.ink, rng
        )
        top = (
            sheet.write(
                (left + 1.5 * style.body, top, right, bottom),
                script.sentence(rng.randint(2, 6)),
                style.plain,
                style.body,
                style.ink,
            )
            + 0.7 * style.body
        )


def figure(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """One large number and what it counts."""
    left, top, right, bottom = area
    size = min(0.6 * (bottom - top), style.body * rng.uniform(3, 6))
    end = sheet.write(
        (left, top, right, bottom), script.number(), style.display, size, readable_on(style.back, rng), "centre"
    )
    sheet.write(
        (left, end, right, bottom), script.label(), style.plain, style.body * rng.uniform(1, 1.5), style.ink, "centre"
    )


def bars(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """Horizontal bars with a label before and a number in or behind each."""
    left, top, right, bottom = heading(sheet, area, script, style, rng)
    pitch = style.body * rng.uniform(1.6, 2.6)
    start = left + rng.uniform(0.25, 0.4) * (right - left)
    colour = rng.choice(style.accents)
    while top + pitch < bottom:
        length = rng.uniform(0.1, 0.8) * (right - start)
        sheet.draw.rectangle((start, top, start + length, top + 0.75 * pitch), fill=colour)
        sheet.write((left, top, start - 4, top + pitch), script.label(), style.plain, style.body, style.ink, "right")
        inside = length > 4 * style.body and rng.random() < 0.5
        x = start + 4 if inside else start + length + 4
        fill = readable_on(grey_of(colour), rng) if inside else style.ink
        sheet.write((x, top, right, top + pitch), script.number(), style.plain, style.body, fill)
        top += pitch


def columns(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """Upright bars or a line over an axis, numbers above, labels below."""
    left, top, right, bottom = heading(sheet, area, script, style, rng)
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
        sheet.write(
            (x, high - 1.4 * style.body, x + step, high),
            script.number(),
            style.plain,
            0.9 * style.body,
            style.ink,
            "centre",
        )
        sheet.write(
            (x + 2, base + 2, x + step - 2, bottom), script.label(), style.plain, 0.9 * style.body, style.ink, "centre"
        )
    if line:
        sheet.draw.line(points, fill=rng.choice(style.accents), width=3)
    sheet.draw.line((left, base, right, base), fill=style.ink, width=1)


def pie(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """A pie or ring with a legend beside it."""
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
            sheet.write(
                (x - 2 * style.body, y - 0.6 * style.body, x + 2 * style.body, y + style.body),
                script.number(),
                style.plain,
                0.9 * style.body,
                readable_on(grey_of(colour), rng),
                "centre",
            )
        sheet.draw.rectangle((left + size + 12, row + 3, left + size + 24, row + 15), fill=colour)
        sheet.write((left + size + 30, row, right, row + pitch), script.label(), style.plain, style.body, style.ink)
        angle, row = angle + part, row + pitch


def shapes(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """Words in shapes, one beside the other, as steps of a process or of a time line."""
    left, top, right, bottom = area
    count = rng.randint(2, 4)
    step = (right - left) / count
    high = min(bottom - top, rng.uniform(3, 6) * style.body)
    for i in range(count):
        colour = rng.choice(style.accents)
        box = (left + (i + 0.14) * step, top + 0.2 * high, left + (i + 0.82) * step, top + high)
        sheet.shape(box, colour, rng)
        text = script.number() if rng.random() < 0.2 else script.label()
        sheet.write(
            box,
            text,
            style.display,
            style.body * rng.uniform(1, 1.6),
            readable_on(grey_of(colour), rng),
            "centre",
            True,
        )
        under = (left + i * step + 4, top + 1.3 * high, left + (i + 1) * step - 4, bottom)
        sheet.write(under, script.sentence(rng.randint(2, 8)), style.plain, style.body, style.ink, "centre")


def icons(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """A row of pictograms with a word under each, or one repeated as a count with one label."""
    left, top, right, bottom = area
    size = min(0.5 * (bottom - top), rng.uniform(2, 5) * style.body)
    count = rng.randint(2, 5)
    step = (right - left) / count
    for i in range(count):
        sheet.icon(left + (i + 0.5) * step, top + size / 2, size, rng.choice(style.accents), style.ink, rng)
        under = (left + i * step + 3, top + size + 3, left + (i + 1) * step - 3, bottom)
        sheet.write(under, script.label(), style.plain, style.body, style.ink, "centre")


def photograph(sheet: Sheet, area: Area, script: Script, style: Style, rng: random.Random) -> None:
    """A texture with display type on it."""
    dark = rng.random() < 0.7
    low, high = ((0, 50), (60, 130)) if dark else ((150, 200), (215, 255))
    sheet.paint(area, rng, some_colour(rng, *low), some_colour(rng, *high))
    left, top, right, bottom = area
    inner = (left + style.body, top + 0.5 * style.body, right - style.body, bottom - 0.5 * style.body)
    fill = (255, 255, 255) if dark else (15, 15, 15)
    sheet.write(
        inner,
        script.heading() if rng.random() < 0.6 else script.sentence(rng.randint(3, 9)),
        style.display,
        style.body * rng.uniform(1.5, 3),
        fill,
        rng.choice(["left", "centre"]),
        True,
        rng.random() < 0.4,
    )


BLOCKS: tuple[Block, ...] = (paragraph, paragraph, bullets, figure, bars, columns, pie, shapes, icons, photograph)


def choose_style(
    rng: random.Random, fonts: tuple[str, ...], body: float, dark: float = 0.45
) -> tuple[Style, tuple[int, int, int]]:
    """A style and its background's colour; a share of the sheets is `dark`."""
    back = some_colour(rng, 0, 110) if rng.random() < dark else some_colour(rng, 165, 255)
    if rng.random() < 0.25 and grey_of(back) > 128:
        back = (255, 255, 255)
    grey = grey_of(back)
    accents = tuple(some_colour(rng, 0, 255) for _ in range(4))
    display = rng.choice(rng.choice(font_families(fonts)[1])) if rng.random() < 0.7 else choose_font(rng, fonts)
    return Style(display, choose_font(rng, fonts), body, grey, readable_on(grey, rng), accents), back


def poster(rng: random.Random, script: Script, fonts: tuple[str, ...], width: int, height: int, body: float) -> Sheet:
    """A whole poster of `width x height` pixels with body text of `body` pixels."""
    style, back = choose_style(rng, fonts, body)
    sheet = Sheet(width, height, back)
    if rng.random() < 0.35:  # a quiet texture behind everything
        other = tuple(min(255, max(0, c + rng.choice([-1, 1]) * rng.randint(5, 30))) for c in back)
        sheet.paint((0, 0, width, height), rng, back, other)  # type: ignore[arg-type]
    margin = width * rng.uniform(0.03, 0.07)
    band, ink = height * rng.uniform(0.1, 0.25), style.ink
    if rng.random() < 0.6:
        colour = rng.choice(style.accents)
        if rng.random() < 0.3:
            sheet.paint((0, 0, width, band), rng, some_colour(rng, 0, 30), some_colour(rng, 50, 110))
            ink = (255, 255, 255)
        else:
            sheet.draw.rectangle((0, 0, width, band), fill=colour)
            ink = readable_on(grey_of(colour), rng)
    align = rng.choice(["left", "centre"])
    sheet.write(
        (margin, 0.1 * band, width - margin, 0.9 * band),
        script.title(),
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
            if rng.random() < 0.3:  # a panel of another colour
                panel = some_colour(rng, 0, 120) if rng.random() < 0.5 else some_colour(rng, 160, 255)
                sheet.draw.rounded_rectangle(area, radius=rng.choice([0, body]), fill=panel)
                grey = grey_of(panel)
                here = Style(style.display, style.plain, body, grey, readable_on(grey, rng), style.accents)
                inner = (area[0] + body, area[1] + 0.7 * body, area[2] - body, area[3] - 0.7 * body)
            rng.choice(BLOCKS)(sheet, inner, script, here, rng)
        y += tall + rng.uniform(0.5, 1.5) * body
    return sheet


def draw_poster(rng: random.Random, script: Script, fonts: tuple[str, ...]) -> Sheet:
    """A poster of the measuring set, of about 1.6 million pixels: from landscape to three times as high as wide."""
    aspect = math.exp(rng.uniform(math.log(0.6), math.log(3)))
    width, height = (round((1_600_000 * a) ** 0.5) for a in (1 / aspect, aspect))
    return poster(rng, script, fonts, width, height, rng.uniform(15, 26))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measuring_set.run(parser, draw_poster, "poster")


if __name__ == "__main__":
    main()
