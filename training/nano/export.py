"""Export a training checkpoint to a folder that `anchorfold.load` reads.

python -m training.nano.export DATA_FOLDER --stage pages -o src/anchorfold/backbones/nano/weights

Without --stage the model of --start is exported again, for example to change --minimum-weight.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from anchorfold.attention.layer_settings import CALIBRATION_FILE, read_settings, write_settings
from anchorfold.backbones.nano.model import MINIMUM_WEIGHT
from anchorfold.backbones.nano.processor import NanoImageProcessor
from anchorfold.backbones.nano.query import VOCABULARY_FILE
from training.nano import checkpoint
from training.nano.null_dimensions import count_null_dimensions
from training.nano.stages import STAGES, load_start


def export(
    data: Path, stage: str | None, folder: Path, start: Path | None = None, minimum_weight: float | None = None
) -> None:
    """Write the averaged weights of a stage as float16 safetensors, with vocabulary and image processor.

    Args:
        data: Folder with the checkpoint.
        stage: Name of the run; None exports `start`.
        folder: Output folder.
        start: Exported model that the run continued from.
        minimum_weight: Term-frequency weight of a word that is never repeated; 1 disables the weighting. By default
            as in `start`.
    """
    universal = STAGES[stage].universal if stage in STAGES else 0
    state = None if stage is None else checkpoint.load(data / f"{stage}.pt")
    assert stage is None or state is not None, f"there is no checkpoint of the stage {stage}"
    model, vocabulary, _ = load_start(data, start, universal, **(state["config"] if state else {}))
    suffix = ""
    if state is not None:
        model.load_state_dict(state.get("average", state["model"]))
        suffix = f" after {state['step']} steps of {stage}"
    if minimum_weight is not None:
        weighted = minimum_weight < 1
        model.config.null_dimensions = count_null_dimensions(model) if weighted else 0
        parameter = torch.nn.Parameter(torch.tensor([minimum_weight]), requires_grad=False) if weighted else None
        model.register_parameter(MINIMUM_WEIGHT, parameter)
    model.config._attn_implementation_internal = "sdpa"
    model.to(torch.float16).save_pretrained(folder)
    NanoImageProcessor(model.config.max_patches).save_pretrained(folder)
    (folder / VOCABULARY_FILE).write_text("\n".join(vocabulary.words))
    if start is not None and (start / CALIBRATION_FILE).is_file():
        settings = read_settings(start / CALIBRATION_FILE, len(model.layers))
        write_settings(folder / CALIBRATION_FILE, replace(settings, universal=universal))
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"wrote {folder}: {size:.1f} MB{suffix}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--stage", help="run whose checkpoint is exported")
    parser.add_argument("-o", "--output", type=Path, required=True, help="output folder")
    parser.add_argument("--start", type=Path, help="exported model that the run continued from")
    parser.add_argument("--minimum-weight", type=float, help="term-frequency weight of unrepeated words; 1 disables it")
    arguments = parser.parse_args()
    export(arguments.data, arguments.stage, arguments.output, arguments.start, arguments.minimum_weight)


if __name__ == "__main__":
    main()
