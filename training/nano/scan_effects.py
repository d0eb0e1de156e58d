"""Effects of scanners, copiers and fax machines: tone, lighting, faint or broken print, dirt, rotation, JPEG."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

MAX_DEGREES = 2.0


def scan(
    image: Image.Image, boxes: np.ndarray, rng: random.Random, side: int | None = None
) -> tuple[Image.Image, np.ndarray]:
    """Apply random scan effects to a page.

    Each effect occurs on some pages only. One page in four is black and white like a fax.

    Args:
        image: Page or crop.
        boxes: `(n, 4)` boxes of its characters.
        rng: Random generator.
        side: Longer side of the full page in pixels, if the image is a crop.

    Returns:
        The grey image, of the same size, and the boxes at their new positions.
    """
    page = image.convert("L")
    if rng.random() < 0.35:
        page = add_bleed_through(page, rng)
    if rng.random() < 0.3:
        page = change_toner(page, rng)
    if rng.random() < 0.85:
        page, boxes = rotate_page(page, boxes, rng.uniform(-MAX_DEGREES, MAX_DEGREES), rng.randint(30, 255))
    if rng.random() < 0.3:
        page = punch_holes(page, rng)
    if rng.random() < 0.8:
        page = page.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0) * (side or max(page.size)) / 1200))
    pixels = change_lighting(np.asarray(page, np.float32), rng)
    if rng.random() < 0.25:
        pixels = binarize(pixels, rng)
    return compress_jpeg(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), rng.randint(30, 60)), boxes


def rotate_page(image: Image.Image, boxes: np.ndarray, degrees: float, fill: int) -> tuple[Image.Image, np.ndarray]:
    """Rotate an image about its centre, filling with grey `fill`; boxes `(n, 4)` move with their centres."""
    image = image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=fill)
    angle, cx, cy = np.deg2rad(degrees), image.width / 2, image.height / 2
    x, y = boxes[:, [0, 2]].mean(1) - cx, boxes[:, [1, 3]].mean(1) - cy
    dx = np.cos(angle) * x + np.sin(angle) * y - x
    dy = -np.sin(angle) * x + np.cos(angle) * y - y
    return image, boxes + np.stack((dx, dy, dx, dy), 1).astype(np.float32)


def change_toner(page: Image.Image, rng: random.Random) -> Image.Image:
    """Thin or thicken strokes; the change is blended so that strokes of one pixel stay visible."""
    if rng.random() < 0.4:
        return Image.blend(page, page.filter(ImageFilter.MaxFilter(3)), rng.uniform(0.15, 0.5))
    return Image.blend(page, page.filter(ImageFilter.MinFilter(3)), rng.uniform(0.2, 0.7))


def add_bleed_through(page: Image.Image, rng: random.Random) -> Image.Image:
    """Add the back of the sheet: the page itself, mirrored, faint and blurred."""
    back = page.transpose(Image.Transpose.FLIP_LEFT_RIGHT).filter(ImageFilter.GaussianBlur(1.5))
    faint = 255 - (255 - np.asarray(back, np.float32)) * rng.uniform(0.04, 0.14)
    return Image.fromarray(np.minimum(np.asarray(page, np.float32), faint).astype(np.uint8))


def punch_holes(page: Image.Image, rng: random.Random) -> Image.Image:
    """Draw two to four holes along a side, black or pale."""
    page = page.copy()
    draw = ImageDraw.Draw(page)
    radius = 0.013 * min(page.size) * rng.uniform(0.8, 1.3)
    x = rng.choice([0.03, 0.97]) * page.width
    count, shade = rng.choice([2, 3, 4]), rng.choice([rng.randint(0, 60), rng.randint(120, 190)])
    for i in range(count):
        y = page.height * (i + 1) / (count + 1)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shade)
    return page


def change_lighting(pixels: np.ndarray, rng: random.Random) -> np.ndarray:
    """Change tone and lighting of grey pixels `(H, W)`; add edge shadows, streaks and grain."""
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


def binarize(pixels: np.ndarray, rng: random.Random) -> np.ndarray:
    """Convert to black and white at a level between ink and background; add specks and blur slightly."""
    ink, paper = np.percentile(pixels, [1, 50])
    level = ink + rng.uniform(0.45, 0.75) * (paper - ink)
    noise = np.random.default_rng(rng.getrandbits(32))
    page = np.where(pixels < level, 0, 255).astype(np.uint8)
    specks = noise.random(pixels.shape, np.float32)
    share = rng.uniform(0, 0.002)
    page[specks < share] = 0
    page[specks > 1 - share] = 255
    return np.asarray(Image.fromarray(page).filter(ImageFilter.GaussianBlur(rng.uniform(0.4, 0.8))), np.float32)


def compress_jpeg(image: Image.Image, quality: int) -> Image.Image:
    """Encode and decode as JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert(image.mode)
