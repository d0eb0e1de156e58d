"""Train ColQwen2.5 without its causal mask (--recipe paper), or AGC (--recipe agc).

    python -m training.colqwen25 OUTPUT
    torchrun --nproc-per-node 8 -m training.colqwen25 OUTPUT --recipe agc
    python -m training.colqwen25 OUTPUT --set data.train=./our-corpus --set training.num_train_epochs=5

OUTPUT is a folder that `anchorfold.load` reads, with curve.json and curves.png. Running the same command again resumes
from the last checkpoint.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from anchorfold.errors import AnchorFoldError
from training.colqwen25.recipe import PAPER, read_recipe
from training.colqwen25.run import train


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m training.colqwen25", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--recipe", default=PAPER, help="paper, agc, or a TOML file with differences from paper")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", dest="changes")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    try:
        curve = train(arguments.output, read_recipe(arguments.recipe, arguments.changes))
    except (AnchorFoldError, FileNotFoundError, ConnectionError) as problem:
        parser.exit(1, f"error: {problem}\n")
    best = [point["ndcg_at_5"] for point in curve if "ndcg_at_5" in point]
    print(f"{arguments.output}: NDCG@5 {best[0]:.3f} before training, {best[-1]:.3f} after {curve[-1]['step']} steps")


if __name__ == "__main__":
    main()
