"""Draw docs/fold.png: one page, where its attention gathers, and which patches each stored vector came from.

python docs/draw_fold.py
"""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import anchorfold

RATIO = 0.05
LINES = [
    (40, "Annual Report 2025"),
    (26, "Net revenue by region"),
    (17, "Revenue in the northern region grew by twelve percent, while"),
    (17, "the coastal offices closed the year with a small loss."),
    (26, "Employees and offices"),
    (17, "At the end of December the company employed 4,821 people"),
    (17, "in thirty-seven offices. Energy use fell for the third year."),
    (26, "Outlook"),
    (17, "The board expects moderate growth and will publish revised"),
    (17, "guidance together with the audited statements in April."),
]
TABLE = [
    ("Region", "Revenue", "Change"),
    ("North", "412.5", "+12 %"),
    ("Coast", "188.0", "-3 %"),
    ("South", "97.4", "+5 %"),
]


def draw_page() -> Image.Image:
    """An invented report page, 640 x 832 pixels."""
    page = Image.new("L", (640, 832), 255)
    draw = ImageDraw.Draw(page)
    y = 36
    for size, text in LINES:
        y += 18 if size > 20 else 0
        draw.text((48, y), text, fill=0, font=ImageFont.load_default(size))
        y += round(size * 1.5)
    y += 24
    for row in TABLE:
        for x, cell in zip((60, 250, 430), row, strict=True):
            draw.text((x, y), cell, fill=0, font=ImageFont.load_default(18))
        draw.line((48, y + 28, 592, y + 28), fill=150)
        y += 34
    return page


def tint(page: Image.Image, boxes: np.ndarray, colours: list[tuple[int, int, int] | None]) -> Image.Image:
    """The page in colour, each patch shaded."""
    layer = Image.new("RGB", page.size, "white")
    draw = ImageDraw.Draw(layer)
    size = np.array([page.width, page.height] * 2)
    for box, colour in zip(boxes * size, colours, strict=True):
        if colour is not None:
            draw.rectangle(tuple(box), fill=colour)
    return Image.composite(page.convert("RGB"), layer, page.point(lambda p: 255 if p < 128 else 0))


def main() -> None:
    page = draw_page()
    model = anchorfold.load("nano")
    compressor = anchorfold.AnchorFold(ratio=RATIO)
    (state,) = model.page_states([page], compressor.signals(model.layer_settings))
    alpha = state.mean_signal(compressor.signals(model.layer_settings)).numpy()
    encoded = model.compress_page(state, compressor)
    boxes = encoded.grid.boxes().numpy()
    strength = np.clip(alpha / np.quantile(alpha, 0.98), 0, 1) ** 0.7
    heat = tint(page, boxes, [(255, round(255 - 120 * s), round(255 - 215 * s)) for s in strength])
    wheel = [
        tuple(round(255 * c) for c in colorsys.hsv_to_rgb((q * 0.618) % 1, 0.38, 1.0)) for q in range(len(encoded))
    ]
    inked = [np.asarray(page.crop(tuple(b * np.array([640, 832] * 2)))).min() < 128 for b in boxes]
    groups = tint(page, boxes, [wheel[g] if ink else None for g, ink in zip(encoded.groups, inked, strict=True)])
    draw = ImageDraw.Draw(groups)
    for anchor in encoded.anchors.tolist():
        draw.rectangle(tuple(boxes[anchor] * np.array([page.width, page.height] * 2)), outline=(20, 40, 120), width=2)
    gap, head = 24, 56
    sheet = Image.new("RGB", (3 * page.width + 4 * gap, page.height + head + gap), (245, 245, 248))
    titles = ("the page", "focus: where attention gathers", f"fold: {encoded.full} vectors become {len(encoded)}")
    pen = ImageDraw.Draw(sheet)
    for i, (title, picture) in enumerate(zip(titles, (page.convert("RGB"), heat, groups), strict=True)):
        x = gap + i * (page.width + gap)
        pen.text((x, 16), title, fill=(30, 30, 40), font=ImageFont.load_default(26))
        sheet.paste(picture, (x, head))
    sheet.save(Path(__file__).with_name("fold.png"))


if __name__ == "__main__":
    main()
