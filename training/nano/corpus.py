"""Render PDFs to training pages; the boxes of their characters are the labels.

    python -m training.nano.corpus PDF_FOLDER OUT_FOLDER --workers 2

At most eight pages per document are stored, one `.npz` each: the grey image (PNG bytes) and, for every printed
character, its normalised symbol and its box in pixels. Packages are split by hash into training and held-out pages.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2 as pdfium
from PIL import Image

from anchorfold.backbones.nano.text import fold_character

PAGE_PIXELS = 1_000_000  # slightly more than the model's 1,600 patches of 512 pixels, so that crops can be scaled down
PAGES_PER_DOCUMENT = 8
MIN_CHARACTERS = 120


def is_held_out(name: str) -> bool:
    """Return whether the package of `package-number.pdf` is held out: one in twelve."""
    package = name.rsplit("-", 1)[0]
    return int(hashlib.sha1(package.encode()).hexdigest(), 16) % 12 == 0


def extract_page(page: pdfium.PdfPage, pixels: int = PAGE_PIXELS) -> dict[str, np.ndarray] | None:
    """Render a page and extract its character boxes (left, top, right, bottom in pixels); None without enough text."""
    width, height = page.get_size()
    if not (50 < width < 5000 and 50 < height < 5000):
        return None
    text = page.get_textpage()
    count = text.count_chars()
    if not MIN_CHARACTERS < count < 9000:
        return None
    scale = min(3.0, (pixels / (width * height)) ** 0.5)
    left0, bottom0, _, _ = page.get_bbox()
    if page.get_rotation() != 0:
        return None
    characters = text.get_text_range(0, count)
    if len(characters) != count:
        return None
    symbols, boxes = [], []
    for i, character in enumerate(characters):
        folded = fold_character(character)
        if not folded:
            continue
        left, bottom, right, top = text.get_charbox(i, loose=True)
        step = (right - left) / len(folded)
        for k, symbol in enumerate(folded):
            x = left - left0 + k * step
            symbols.append(symbol)
            boxes.append((x, height - (top - bottom0), x + step, height - (bottom - bottom0)))
    if len(symbols) < MIN_CHARACTERS // 2:
        return None
    image = page.render(scale=scale, grayscale=True).to_pil().convert("L")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=3)
    return {
        "image": np.frombuffer(buffer.getvalue(), np.uint8),
        "symbols": np.array([ord(s) for s in symbols], np.uint16),
        "boxes": (np.array(boxes, np.float32) * scale).astype(np.float16 if max(image.size) < 2000 else np.float32),
    }


def render_document(job: tuple[Path, Path]) -> int:
    """Render pages of a PDF into a folder and return their number; 0 if it was done before."""
    path, out = job
    marker = out / f"{path.stem}.done"
    if marker.exists():
        return 0
    stored = 0
    try:
        document = pdfium.PdfDocument(path)
        pages = list(range(len(document)))
        random.Random(path.stem).shuffle(pages)
        for number in pages[: 3 * PAGES_PER_DOCUMENT]:
            if stored == PAGES_PER_DOCUMENT:
                break
            page = document[number]
            record = extract_page(page)
            page.close()
            if record is not None:
                arrays: dict[str, Any] = record
                np.savez(out / f"{path.stem}@{number}.npz", **arrays)
                stored += 1
    except (pdfium.PdfiumError, ValueError, RuntimeError) as error:
        print(f"{path.name}: {error}", flush=True)
    marker.touch()
    return stored


def load_page(path: Path) -> tuple[Image.Image, str, np.ndarray]:
    """Load a stored page: image, symbols as one string, and their boxes `(n, 4)` in pixels."""
    record = np.load(path)
    image = Image.open(io.BytesIO(record["image"].tobytes()))
    return image, "".join(map(chr, record["symbols"])), split_ligatures(record["boxes"].astype(np.float32))


def split_ligatures(boxes: np.ndarray) -> np.ndarray:
    """Divide the box of a ligature among its letters, which all have the box of the whole glyph; `(n, 4)`."""
    boxes = boxes.copy()
    same = np.flatnonzero((boxes[1:] == boxes[:-1]).all(1)) + 1
    for run in np.split(same, np.flatnonzero(np.diff(same) > 1) + 1) if len(same) else []:
        first, count = run[0] - 1, len(run) + 1
        edges = np.linspace(boxes[first, 0], boxes[first, 2], count + 1)
        boxes[first : first + count, 0], boxes[first : first + count, 2] = edges[:-1], edges[1:]
    return boxes


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pdfs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    paths = sorted(arguments.pdfs.glob("*.pdf"))
    random.Random(7).shuffle(paths)
    for folder in ("train", "held_out"):
        (arguments.out / folder).mkdir(parents=True, exist_ok=True)
    jobs = [(p, arguments.out / ("held_out" if is_held_out(p.name) else "train")) for p in paths]
    total = 0
    with multiprocessing.Pool(arguments.workers, maxtasksperchild=50) as sampler:
        for i, stored in enumerate(sampler.imap_unordered(render_document, jobs), 1):
            total += stored
            if i % 100 == 0:
                print(f"{i}/{len(jobs)} documents, {total} pages", flush=True)


if __name__ == "__main__":
    main()
