"""nano's window and depth by the paper's label-free rule, on pages that training never saw.

    python -m training.nano.calibration DATA_FOLDER --model FOLDER --pairs 500

A pair is a held-out page and one of its own lines. Writes `anchorfold.json` into the model's folder.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

import anchorfold
from anchorfold.attention.layer_settings import CALIBRATION_FILE, write_settings
from anchorfold.evaluation.calibration import calibrate
from training.nano.corpus import load_page
from training.nano.labels import group_words


def line_pairs(data: Path, count: int, seed: int = 42) -> Iterator[tuple[str, Image.Image]]:
    """A run of four to eight words of a page as its query."""
    rng = random.Random(seed)
    paths = sorted((data / "pages" / "held_out").glob("*.npz"))
    rng.shuffle(paths)
    for path in paths[:count]:
        image, symbols, boxes = load_page(path)
        words = group_words(symbols, boxes).texts
        length = min(rng.randint(4, 8), len(words))
        start = rng.randrange(len(words) - length + 1)
        yield " ".join(words[start : start + length]), image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=500)
    arguments = parser.parse_args()
    calibration = calibrate(anchorfold.load(arguments.model), line_pairs(arguments.data, arguments.pairs))
    for depth, profile in calibration.profiles.items():
        mean = sum(calibration.values[depth]) / len(calibration.values[depth])
        layers = "  ".join(f"{v:6.2f}" for v in profile)
        print(f"K {depth:2}  single layers {layers}   window {calibration.windows[depth]}  {mean:.3f} %")
    print("SAP  single layers " + "  ".join(f"{v:6.2f}" for v in calibration.sap_profile))
    print(calibration.settings)
    write_settings(arguments.model / CALIBRATION_FILE, calibration.settings)


if __name__ == "__main__":
    main()
