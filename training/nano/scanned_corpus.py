"""Create the scanned version of a corpus, with the same queries.

    python -m training.nano.scanned_corpus CORPUS TO --documents debian-faq.en,developers-reference

CORPUS contains `pdfs/` and `queries.jsonl`. Every page is rendered at 110 to 200 dpi, modified by `scan_effects.scan`
with its own seed, tinted like yellowed or grey paper, and stored as an image in a PDF of the same name.
"""

from __future__ import annotations

import argparse
import io
import random
import shutil
from pathlib import Path

import numpy as np
import pypdfium2 as pdfium
from PIL import Image, ImageOps

from anchorfold.evaluation.corpus import EXCLUDED_FILE, PAGES_FOLDER, QUERIES_FILE
from training.nano.scan_effects import scan

DPI = (110, 200)
TINTS = ("#ffffff", "#ffffff", "#fbf3dc", "#f3e6c2", "#ece9e2")


def scan_page(page: pdfium.PdfPage, rng: random.Random) -> Image.Image:
    """Render a page as a colour scan."""
    grey = page.render(scale=rng.uniform(*DPI) / 72, grayscale=True).to_pil().convert("L")
    grey, _ = scan(grey, np.zeros((0, 4), np.float32), rng)
    return ImageOps.colorize(grey, "#000000", rng.choice(TINTS))


def scan_document(source: Path, target: Path, seed: int) -> int:
    """Write the scanned version of a PDF and return its number of pages."""
    document, output = pdfium.PdfDocument(source), pdfium.PdfDocument.new()
    for number in range(len(document)):
        rng = random.Random(f"{seed}/{source.name}/{number}")
        image, buffer = scan_page(document[number], rng), io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(40, 60))
        width, height = document[number].get_size()
        embedded = pdfium.PdfImage.new(output)
        embedded.load_jpeg(buffer, inline=True)
        embedded.set_matrix(pdfium.PdfMatrix().scale(width, height))
        page = output.new_page(width, height)
        page.insert_obj(embedded)
        page.gen_content()
    output.save(target)
    return len(document)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--documents", help="comma-separated file stems (default: all)")
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    (arguments.to / PAGES_FOLDER).mkdir(parents=True, exist_ok=True)
    for name in (QUERIES_FILE, EXCLUDED_FILE):
        if (arguments.corpus / name).exists():
            shutil.copy(arguments.corpus / name, arguments.to / name)
    stems = set(arguments.documents.split(",")) if arguments.documents else None
    for path in sorted((arguments.corpus / PAGES_FOLDER).glob("*.pdf")):
        if stems is None or path.stem in stems:
            print(
                f"{path.name}: {scan_document(path, arguments.to / PAGES_FOLDER / path.name, arguments.seed)} pages",
                flush=True,
            )


if __name__ == "__main__":
    main()
