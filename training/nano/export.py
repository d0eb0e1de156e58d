"""A training checkpoint to a folder that `anchorfold.load` reads: float16 safetensors, vocabulary, processor.

python -m training.nano.export DATA_FOLDER --stage pages --to src/anchorfold/backbones/nano/weights

Without --stage it writes the model of --start anew, which is a way to set --quietest alone.
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
from training.nano.silence import silent_dimensions
from training.nano.stages import STAGES, load_start


def export(
    data: Path, stage: str | None, folder: Path, start: Path | None = None, quietest: float | None = None
) -> None:
    """Write the averaged weights of a stage.

    Args:
        data: where the checkpoint is.
        stage: whose weights; those of `start` if it is None.
        folder: where the model goes.
        start: the exported model that the stage went on with.
        quietest: how loudly a word speaks that is never repeated, 1 for all alike; as in `start` if not given.
    """
    universal = STAGES[stage].universal if stage in STAGES else 0
    state = None if stage is None else checkpoint.load(data / f"{stage}.pt")
    assert stage is None or state is not None, f"there is no checkpoint of the stage {stage}"
    model, index, _ = load_start(data, start, universal, state is not None and state.get("eighth", False))
    after = ""
    if state is not None:
        model.load_state_dict(state.get("average", state["model"]))
        model.config.rope_still = state["still"]
        after = f" after {state['step']} steps of {stage}"
    if quietest is not None:
        model.config.silent = silent_dimensions(model) if quietest < 1 else 0
        model.register_parameter(
            "quietest", torch.nn.Parameter(torch.tensor([quietest]), requires_grad=False) if quietest < 1 else None
        )
    model.config._attn_implementation_internal = "sdpa"
    model.to(torch.float16).save_pretrained(folder)
    NanoImageProcessor(model.config.max_patches).save_pretrained(folder)
    (folder / VOCABULARY_FILE).write_text("\n".join(index.words))
    if start is not None and (start / CALIBRATION_FILE).is_file():
        settings = read_settings(start / CALIBRATION_FILE, len(model.layers))
        write_settings(folder / CALIBRATION_FILE, replace(settings, universal=universal))
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"wrote {folder}: {size:.1f} MB{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--stage")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="the exported model that the stage went on with, if it did")
    parser.add_argument("--quietest", type=float, help="how loudly a word speaks that is never repeated; 1: all")
    arguments = parser.parse_args()
    export(arguments.data, arguments.stage, arguments.to, arguments.start, arguments.quietest)


if __name__ == "__main__":
    main()
