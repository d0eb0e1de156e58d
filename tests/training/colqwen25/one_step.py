"""One step of training in as many processes as torchrun starts; the first one writes the gradients.

torchrun --nproc-per-node 2 -m tests.training.colqwen25.one_step OUTPUT GRADIENTS RECIPE [SECTION.NAME=VALUE ...]
"""

import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from training.colqwen25.recipe import read_recipe
from training.colqwen25.run import train


class SaveGradients(TrainerCallback):
    def __init__(self, path):
        self.path = path

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        if args.process_index == 0:
            torch.save({name: p.grad for name, p in model.named_parameters() if p.requires_grad}, self.path)


def one_step(output, gradients, recipe, changes):
    fixed = ["training.max_steps=1", "training.max_grad_norm=0", "training.logging_steps=1", "lora.lora_dropout=0.0"]
    return train(Path(output), read_recipe(recipe, [*fixed, *changes]), [SaveGradients(gradients)])


if __name__ == "__main__":
    one_step(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
