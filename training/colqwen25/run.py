"""Resumable training run, from a recipe to a folder that `anchorfold.load` reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments, set_seed

from anchorfold.errors import AnchorFoldError
from training.colqwen25.curves import Point, points_of
from training.colqwen25.model import build
from training.colqwen25.pairs import TrainingData, read_data
from training.colqwen25.recipe import Recipe
from training.colqwen25.trainer import PairTrainer

RECIPE_FILE, STATE_FILE = "recipe.json", "trainer_state.json"
# Defaults that this trainer requires; a recipe may override them.
ARGUMENTS: dict[str, Any] = {
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "save_total_limit": 2,  # an interrupted save resumes from the previous checkpoint
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "remove_unused_columns": False,
    "report_to": "none",
    # Queries and pages are two passes through one model: all adapters are used in both, no buffer changes in between.
    "ddp_find_unused_parameters": False,
    "ddp_broadcast_buffers": False,
    "accelerator_config": {"dispatch_batches": False, "split_batches": False},
}


def train(output: Path, recipe: Recipe, callbacks: Iterable[TrainerCallback] = ()) -> list[Point]:
    """Train or resume; return the curve. `callbacks` are callbacks of transformers."""
    output.mkdir(parents=True, exist_ok=True)
    require_same_recipe(output, recipe)
    args = training_arguments(output, recipe.training)
    set_seed(args.seed)
    retriever, model = build(recipe, args.device)
    with args.main_process_first(desc="preparing pages"):
        data = read_data(recipe.data, output, retriever.page_pixels, args.seed)
    if recipe.data.streaming:
        args.max_steps = steps_of(data, args)
    if args.should_save:
        recipe.save(output / RECIPE_FILE)
    checkpoint = last_checkpoint(output)
    args.eval_on_start = checkpoint is None
    trainer = PairTrainer(retriever, model, recipe, data, args)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=checkpoint)
    if "ndcg_at_5" not in points_of(trainer.state.log_history)[-1]:
        trainer.evaluate()
    trainer.save_model(str(output))
    return points_of(trainer.state.log_history)


def training_arguments(output: Path, settings: dict[str, Any]) -> TrainingArguments:
    """Build transformers' arguments from the section `training` of a recipe."""
    try:
        args = TrainingArguments(output_dir=str(output), **{**ARGUMENTS, **settings})
    except (TypeError, ValueError) as problem:
        raise AnchorFoldError(
            f"the section training of the recipe does not fit TrainingArguments: {problem}."
        ) from problem
    if args.n_gpu > 1:
        raise AnchorFoldError(
            f"there are {args.n_gpu} GPUs and one process: start with `torchrun --nproc-per-node {args.n_gpu} -m "
            "training.colqwen25 ...`, or choose one with CUDA_VISIBLE_DEVICES=0."
        )
    return args


def steps_of(data: TrainingData, args: TrainingArguments) -> int:
    """Compute the number of optimiser steps of a stream, whose length is unknown to transformers."""
    if args.max_steps > 0:
        return args.max_steps
    if data.count is None:
        raise AnchorFoldError("this stream does not say how long it is: set training.max_steps.")
    batch = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    return math.ceil(data.count * args.num_train_epochs / batch)


def last_checkpoint(output: Path) -> str | None:
    """Find the newest complete checkpoint: the state of the trainer is its last file."""
    complete = [folder for folder in output.glob("checkpoint-*") if (folder / STATE_FILE).is_file()]
    return str(max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]))) if complete else None


def require_same_recipe(output: Path, recipe: Recipe) -> None:
    """Raise if the folder contains a run with another recipe."""
    path = output / RECIPE_FILE
    if not path.is_file():
        return
    before, now = json.loads(path.read_text()), json.loads(json.dumps(asdict(recipe)))
    changed = [
        f"{section}.{name}"
        for section in now
        for name in {**before.get(section, {}), **now[section]}
        if before.get(section, {}).get(name) != now[section].get(name)
    ]
    if changed:
        raise AnchorFoldError(
            f"{output} holds a run by another recipe ({', '.join(changed)} differ): go on with the same one, or give "
            "another folder."
        )
