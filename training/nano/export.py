"""A training checkpoint to a folder that `anchorfold.load` reads: float16 safetensors, vocabulary, processor.

python -m training.nano.export DATA_FOLDER --stage pages --to src/anchorfold/nano/weights
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from anchorfold.nano.processor import NanoImageProcessor
from anchorfold.nano.query import VOCABULARY_FILE
from training.nano import checkpoint
from training.nano.matching import load_start


def export(data: Path, stage: str, folder: Path) -> None:
    model, index, _ = load_start(data)
    state = checkpoint.load(data / f"{stage}.pt")
    assert state is not None, f"there is no checkpoint of the stage {stage}"
    model.load_state_dict(state["model"])
    model.config._attn_implementation_internal = "sdpa"
    model.to(torch.float16).save_pretrained(folder)
    NanoImageProcessor(model.config.max_patches).save_pretrained(folder)
    (folder / VOCABULARY_FILE).write_text("\n".join(index.words))
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"wrote {folder}: {size:.1f} MB after {state['step']} steps of {stage}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--stage", default="pages")
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.data, arguments.stage, arguments.to)


if __name__ == "__main__":
    main()
