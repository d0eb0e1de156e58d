"""What a scanner, a copier or a fax makes of a page: tone, light, faint or broken print, dirt, turning, JPEG."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

MAX_DEGREES = 2.0


def scan(
    image: Image.Image, boxes: np.ndarray, rng: random.Random, side: int | None = None
) -> tuple[Image.Image, np.ndarray]:
    """A grey page as it comes from a scanner, of the same size, and its characters' boxes `(n, 4)` moved along.

    Every fault is there on some pages only: one page in four is bilevel as a fax is, the others keep their greys.
    `side` is the longer one of the page in pixels, if the image is a piece of it.
    """
    page = image.convert("L")
    if rng.random() < 0.35:
        page = bleed_through(page, rng)
    if rng.random() < 0.3:
        page = toner(page, rng)
    if rng.random() < 0.85:
        page, boxes = turn(page, boxes, rng.uniform(-MAX_DEGREES, MAX_DEGREES), rng.randint(30, 255))
    if rng.random() < 0.3:
        page = punch_holes(page, rng)
    if rng.random() < 0.8:
        page = page.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0) * (side or max(page.size)) / 1200))
    pixels = light(np.asarray(page, np.float32), rng)
    if rng.random() < 0.25:
        pixels = bilevel(pixels, rng)
    return compress(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), rng.randint(30, 60)), boxes


def turn(image: Image.Image, boxes: np.ndarray, degrees: float, beyond: int) -> tuple[Image.Image, np.ndarray]:
    """Turn about the middle, the colour `beyond` outside; boxes `(n, 4)` follow by their centres."""
    image = image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=beyond)
    angle, cx, cy = np.deg2rad(degrees), image.width / 2, image.height / 2
    x, y = boxes[:, [0, 2]].mean(1) - cx, boxes[:, [1, 3]].mean(1) - cy
    dx = np.cos(angle) * x + np.sin(angle) * y - x
    dy = -np.sin(angle) * x + np.cos(angle) * y - y
    return image, boxes + np.stack((dx, dy, dx, dy), 1).astype(np.float32)


def toner(page: Image.Image, rng: random.Random) -> Image.Image:
    """Strokes worn thin or run fat. A stroke of one pixel must stay visible, so the change is mixed in."""
    if rng.random() < 0.4:
        return Image.blend(page, page.filter(ImageFilter.MaxFilter(3)), rng.uniform(0.15, 0.5))
    return Image.blend(page, page.filter(ImageFilter.MinFilter(3)), rng.uniform(0.2, 0.7))


def bleed_through(page: Image.Image, rng: random.Random) -> Image.Image:
    """The back of the sheet shows: the page itself, mirrored, faint and soft."""
    back = page.transpose(Image.Transpose.FLIP_LEFT_RIGHT).filter(ImageFilter.GaussianBlur(1.5))
    faint = 255 - (255 - np.asarray(back, np.float32)) * rng.uniform(0.04, 0.14)
    return Image.fromarray(np.minimum(np.asarray(page, np.float32), faint).astype(np.uint8))


def punch_holes(page: Image.Image, rng: random.Random) -> Image.Image:
    """Two to four holes along a side, black or pale."""
    page = page.copy()
    draw = ImageDraw.Draw(page)
    radius = 0.013 * min(page.size) * rng.uniform(0.8, 1.3)
    x = rng.choice([0.03, 0.97]) * page.width
    count, shade = rng.choice([2, 3, 4]), rng.choice([rng.randint(0, 60), rng.randint(120, 190)])
    for i in range(count):
        y = page.height * (i + 1) / (count + 1)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shade)
    return page


def light(pixels: np.ndarray, rng: random.Random) -> np.ndarray:
    """Tone of paper and ink, uneven light, a shadow along an edge, streaks and grain, on `(H, W)` greys."""
    height, width = pixels.shape
    paper = rng.uniform(185, 252)
    ink = rng.uniform(0, 60) if rng.random() < 0.7 else rng.uniform(60, min(140, paper - 85))  # faint print
    pixels = ink + pixels * ((paper - ink) / 255)
    across = np.linspace(rng.uniform(0.85, 1.05), rng.uniform(0.85, 1.05), width, dtype=np.float32)
    down = np.linspace(rng.uniform(0.9, 1.05), rng.uniform(0.9, 1.05), height, dtype=np.float32)
    if rng.random() < 0.35:
        reach = rng.uniform(0.02, 0.12) * width
        shadow = 1 - rng.uniform(0.2, 0.6) * np.exp(-np.arange(width, dtype=np.float32) / reach)
        across = across * (shadow if rng.random() < 0.5 else shadow[::-1])
    if rng.random() < 0.15:
        across[[rng.randrange(width) for _ in range(rng.randint(1, 4))]] *= rng.uniform(0.6, 0.9)
    pixels = pixels * across * down[:, None]
    noise = np.random.default_rng(rng.getrandbits(32))
    return pixels + noise.standard_normal(pixels.shape, np.float32) * rng.uniform(1, 14)


def bilevel(pixels: np.ndarray, rng: random.Random) -> np.ndarray:
    """Black or white only, around a level between paper and ink, with specks; softened as when it is shown smaller."""
    ink, paper = np.percentile(pixels, [1, 50])
    level = ink + rng.uniform(0.45, 0.75) * (paper - ink)
    noise = np.random.default_rng(rng.getrandbits(32))
    page = np.where(pixels < level, 0, 255).astype(np.uint8)
    specks = noise.random(pixels.shape, np.float32)
    share = rng.uniform(0, 0.002)
    page[specks < share] = 0
    page[specks > 1 - share] = 255
    return np.asarray(Image.fromarray(page).filter(ImageFilter.GaussianBlur(rng.uniform(0.4, 0.8))), np.float32)


def compress(image: Image.Image, quality: int) -> Image.Image:
    """Through JPEG and back."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert(image.mode)
