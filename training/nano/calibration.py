"""Calibrate layer window and propagation depth on held-out pages with the paper's label-free rule.

    python -m training.nano.calibration DATA_FOLDER --model FOLDER --pairs 500

Pairs are held-out pages and a phrase of each as its query. Writes `anchorfold.json` into the model folder.
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
from anchorfold.evaluation.calibration_pairs import PairSource
from training.nano.corpus import load_page
from training.nano.labels import group_words


def sample_pairs(data: Path, count: int, seed: int = 42) -> Iterator[tuple[str, Image.Image]]:
    """Yield pages with four to eight consecutive words as their query."""
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
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=500)
    arguments = parser.parse_args()
    pairs = PairSource(lambda: sample_pairs(arguments.data, arguments.pairs))
    calibration = calibrate(anchorfold.load(arguments.model), pairs)
    for depth, profile in calibration.profiles.items():
        mean = sum(calibration.values[depth]) / len(calibration.values[depth])
        layers = "  ".join(f"{v:6.2f}" for v in profile)
        print(f"K {depth:2}  single layers {layers}   window {calibration.windows[depth]}  {mean:.3f} %")
    print("SAP  single layers " + "  ".join(f"{v:6.2f}" for v in calibration.sap_profile))
    print(calibration.settings)
    write_settings(arguments.model / CALIBRATION_FILE, calibration.settings)


if __name__ == "__main__":
    main()
