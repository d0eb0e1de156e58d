"""How much of the score does each method keep on your pages, and at which size?

python examples/compare_compressors.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import anchorfold
from anchorfold.compressors import required_signals
from anchorfold.demo.sample_documents import slides
from anchorfold.documents.formats import open_document
from anchorfold.documents.listing import list_documents

METHODS = ("anchorfold", "focus-clustering", "semantic-clustering", "similarity-fold", "1d-pooling", "random")
QUERIES = ("vendors for satellite and coastal 5G", "budget of the project", "who is the sponsor?")
MAX_PAGES = 4


def page_images(folder: Path, pixels: int) -> list[Image.Image]:
    """The first pages of a folder's documents."""
    images = []
    for document in list_documents(folder).documents:
        with open_document(document.path, pixels) as pages:
            images += [pages.image(number) for number in range(min(len(pages), MAX_PAGES - len(images)))]
        if len(images) == MAX_PAGES:
            break
    return images


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) if len(sys.argv) < 2 else Path(sys.argv[1])
        if folder == Path(work):
            slides().output(str(folder / "wifi-slides.pdf"))
        model = anchorfold.load("nano")
        compressors = {
            f"{name} {ratio}": anchorfold.compressors.compressor(name, ratio=ratio)
            for name in METHODS
            for ratio in (0.2, 0.05)
        }
        # One pass through the model serves every method.
        states = list(
            model.page_states(
                page_images(folder, model.page_pixels), required_signals(compressors.values(), model.layer_settings)
            )
        )
    full = [model.compress_page(state, anchorfold.FullIndex()) for state in states]
    queries = model.encode_queries(list(QUERIES))
    whole = anchorfold.maxsim(queries, full).amax(1)
    print(f"{'method':24}{'vectors':>8}{'score kept':>12}")
    for name, compressor in compressors.items():
        small = [model.compress_page(state, compressor) for state in states]
        retention = (anchorfold.maxsim(queries, small).amax(1) / whole).mean()
        print(f"{name:24}{sum(map(len, small)):>8,}{100 * retention:>10.1f} %")


if __name__ == "__main__":
    main()
