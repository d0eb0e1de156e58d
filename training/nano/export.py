"""A training checkpoint to a folder that `anchorfold.load` reads: float16 safetensors, vocabulary, processor.

python -m training.nano.export DATA_FOLDER --stage pages --to src/anchorfold/backbones/nano/weights
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from anchorfold.attention.layer_settings import CALIBRATION_FILE, read_settings, write_settings
from anchorfold.backbones.nano.processor import NanoImageProcessor
from anchorfold.backbones.nano.query import VOCABULARY_FILE
from training.nano import checkpoint
from training.nano.stages import STAGES, load_start


def export(data: Path, stage: str, folder: Path, start: Path | None = None) -> None:
    universal = STAGES[stage].universal if stage in STAGES else 0
    model, index, _ = load_start(data, start, universal)
    state = checkpoint.load(data / f"{stage}.pt")
    assert state is not None, f"there is no checkpoint of the stage {stage}"
    model.load_state_dict(state["model"])
    model.config.rope_still = state["still"]
    model.config._attn_implementation_internal = "sdpa"
    model.to(torch.float16).save_pretrained(folder)
    NanoImageProcessor(model.config.max_patches).save_pretrained(folder)
    (folder / VOCABULARY_FILE).write_text("\n".join(index.words))
    if start is not None and (start / CALIBRATION_FILE).is_file():
        settings = read_settings(start / CALIBRATION_FILE, len(model.layers))
        write_settings(folder / CALIBRATION_FILE, replace(settings, universal=universal))
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"wrote {folder}: {size:.1f} MB after {state['step']} steps of {stage}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--stage", default="pages")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="the exported model that the stage went on with, if it did")
    arguments = parser.parse_args()
    export(arguments.data, arguments.stage, arguments.to, arguments.start)


if __name__ == "__main__":
    main()
