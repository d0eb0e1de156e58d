"""Stages 2 to 6: train patches to predict the vectors of their words, and attention to select anchors.

python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage words --steps 1600
python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage pages --steps 560

Runs that continue from exported weights need pages and fonts, but no earlier checkpoint:

python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage mixed --start WEIGHTS --steps 12000

Stages and runs:
  words            crops, reader frozen
  pages            whole pages; losses on attention, folding and compressed pages
  crops            reading only, on small crops: about three times as many patches per hour
  mixed            four steps of crops to one of pages
  settled          one step of crops to two of pages
  degraded         as settled with more scans, small print, posters and slides, and unsquared shares on pages
  neutral          reading and masked patches, attention re-initialised: no term for where attention goes or for folding
  neutral-causal   the same with a causal attention mask
  agc              universal tokens of the AGC baseline

A run resumes from DATA_FOLDER/STAGE.pt, which is written every few minutes. The checkpoint contains a running average
of the weights, which is what `training.nano.export` writes: a run may be interrupted at any time.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from anchorfold.backbones.nano.model import NanoModel, list_positions
from anchorfold.core.focus import layer_score, propagate
from training.nano import checkpoint, losses
from training.nano.candidates import CandidateSampler, compute_folding_losses, compute_word_losses
from training.nano.checkpoint import RunningAverage
from training.nano.examples import Example, LabelledCrops, estimate_query_weights, select_masked
from training.nano.reading import character_loss
from training.nano.stages import RUNS, STAGES, Stage, captured_attention, load_start, reset_attention

FOCUS_LAYERS = (3, 4)  # a fifth of the depth past the middle, as in the paper's backbones
FOCUS_STEPS = (2, 6)
SAVE_SECONDS = 240
WARMUP_STEPS = 150
DECAY_SHARE = 0.5  # share of a run over which the learning rate decays to zero
REPEAT_WEIGHT = 0.3


def batch_loss(
    model: NanoModel,
    sampler: CandidateSampler,
    weights: dict[str, float],
    stage: Stage,
    batch: list[Example],
    rng: random.Random,
    bfloat16: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss of a batch and a report of its parts.

    Args:
        model: Model to train.
        sampler: Draws candidate words.
        weights: Inverse document frequencies of known words.
        stage: Loss weights.
        batch: Labelled crops.
        rng: Draws candidates, focus layer, propagation depth and ratio.
        bfloat16: Run stem and transformer in bfloat16.
    """
    rows, columns = stage.height // 16, stage.width // 32
    grid = list_positions(rows, columns)
    pixels = torch.stack([e.pixels for e in batch])
    logits: list[Tensor] = []
    hook = model.stem.reader.register_forward_hook(lambda _module, _inputs, output: logits.append(output[1]))
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        features = [p[e.patches] for p, e in zip(model.stem(pixels), batch, strict=True)]
        masks = [select_masked(e, stage.masked_share, rng) for e in batch]
        visible = [f.masked_fill(m[:, None], 0) for f, m in zip(features, masks, strict=True)]
        hidden = model.encode(visible, [grid[e.patches] for e in batch])
    hook.remove()
    registers = model.config.registers
    states = [h[registers : registers + len(e.patches)].float() for h, e in zip(hidden, batch, strict=True)]
    vectors = [F.normalize(model.projection(s), dim=-1) for s in states]
    candidates = sampler.sample(batch, rng)
    labels = candidates.labels(batch)
    parts, accuracy = compute_word_losses(vectors, batch, candidates, stage.squared_shares)
    # Features before the transformer are trained too: a short path for the gradient to the stem.
    alone = F.normalize(model.projection(model.norm(torch.cat(features).float())), dim=-1)
    alone_loss, alone_accuracy = losses.reading_loss(alone, candidates.vectors, *labels)
    loss = parts["reading"] + 0.5 * parts["localization"] + 0.5 * alone_loss
    loss = loss + stage.absent_weight * (parts["absent"] + 0.5 * parts["background"])
    report = {name: part.item() for name, part in parts.items()}
    report |= {"accuracy": accuracy, "alone_accuracy": alone_accuracy.item()}
    if stage.masked_share:
        # Masked patches count twice: they are part of the reading loss too.
        rows_masked = torch.cat(masks)[labels[0][:, 0]]
        masked, masked_accuracy = losses.reading_loss(
            torch.cat(vectors), candidates.vectors, labels[0][rows_masked], labels[1][rows_masked]
        )
        loss = loss + masked
        report |= {"masked": masked.item(), "masked_accuracy": masked_accuracy.item()}
    # Synthetic pages have no topic: which words matter is learned from real pages only.
    real = [b for b, e in enumerate(batch) if e.real]
    crops, full = [batch[b] for b in real], [vectors[b] for b in real]
    values = [estimate_query_weights(e, weights) for e in crops]
    if real and stage.universal:
        query, key = captured_attention(model, -1)
        tokens = slice(registers - stage.universal, registers)
        scores = [
            losses.universal_saliency(query[b, :, tokens], key[b, :, : registers + len(e.patches)], len(e.patches))
            for b, e in zip(real, crops, strict=True)
        ]
    elif real and stage.centrality_weight:
        value_vectors = [torch.tensor(list(v.values())) for v in values]
        word_vectors = [candidates.vectors[[candidates.index[w] for w in v]] for v in values]
        query, key = captured_attention(model, rng.choice(FOCUS_LAYERS))
        visual = [slice(registers, registers + len(e.patches)) for e in crops]
        graphs = [(query[b, :, v], key[b, :, v]) for b, v in zip(real, visual, strict=True)]
        focus, scores = focus_loss(
            graphs, crops, full, word_vectors, value_vectors, rng.choice(FOCUS_STEPS), rows * columns
        )
        loss = loss + stage.centrality_weight * sum(focus.values())
        report |= {name: part.item() for name, part in focus.items()}
    if real and stage.page_weight:
        ratio = rng.choice([0.05, 0.05, 0.1, 0.2])
        # Only some blank patches are used in training: fix the number of vectors, not the ratio.
        ratios = [min(1.0, ratio * rows * columns / len(e.patches)) for e in crops]
        if stage.universal:  # AGC averages vectors, AnchorFold averages hidden states
            pages = [losses.fold_page(*p, lambda v: v) for p in zip(full, scores, ratios, strict=True)]
        else:
            inputs = zip([states[b] for b in real], scores, ratios, strict=True)
            pages = [losses.fold_page(*p, model.projection) for p in inputs]
        page, retention = compute_folding_losses(full, pages, crops, values, candidates)
        loss = loss + stage.page_weight * page + stage.retention_weight * retention
        report |= {"page": page.item(), "retention": retention.item()}
    if not stage.frozen:
        # The model may not read the last scale.
        scales = zip(logits, zip(*(e.characters for e in batch), strict=True), strict=False)
        characters = torch.stack([character_loss(scale.float(), torch.stack(labels))[0] for scale, labels in scales])
        loss = loss + 0.1 * characters[0] + 0.05 * characters[1:].sum()
        report |= {"characters": characters[0].item(), "large_characters": characters[1:].mean().item()}
    return loss, report


def focus_loss(
    graphs: list[tuple[Tensor, Tensor]], crops: list[Example], vectors: list[Tensor], words: list[Tensor],
    values: list[Tensor], steps: int, patches: int,
) -> tuple[dict[str, Tensor], list[Tensor]]:  # fmt: skip
    """Compute the losses on the attention of a focus layer, and its centrality `(n,)` for each crop.

    Args:
        graphs: Queries and keys `(H, n, d)` of each crop's patches in the layer.
        crops: Labelled crops.
        vectors: `(n, 128)` vectors of each crop's patches.
        words: `(w, 128)` vectors of each crop's distinct words.
        values: `(w,)` how likely a query contains each word.
        steps: Propagation depth.
        patches: Number of patches of a crop including blank ones; at most a fifth become anchors.
    """
    sizes = [patches // ratio for ratio in (5, 10, 20)]
    scores, parts = [], []
    for (query, key), e, page, word_vectors, value in zip(graphs, crops, vectors, words, values, strict=True):
        graph = losses.compute_attention(query, key)  # among patches only, as in the attention tap
        score = layer_score(propagate(graph, steps))
        printed = e.pairs[:, 0].unique()
        anchors, gains = losses.select_anchors(page[printed].detach(), word_vectors, value, patches // 5)
        centrality = losses.centrality_loss(score, printed[anchors], gains)
        selection = losses.selection_loss(score, printed[anchors], sizes)
        repeats = REPEAT_WEIGHT * losses.repeat_loss(graph, page.detach(), printed, anchors, gains)
        parts.append(torch.stack((centrality, selection, repeats)))
        scores.append(score)
    return dict(zip(("centrality", "selection", "repeats"), torch.stack(parts).mean(0), strict=True)), scores


def rate_factor(step: int, steps: int) -> float:
    """Return the learning rate relative to its peak: linear warm-up, constant, linear decay to zero."""
    return min(1.0, (step + 1) / min(WARMUP_STEPS, 0.1 * steps), (steps - step) / (DECAY_SHARE * steps))


def stream_batches(
    data: Path, fonts: Path, parts: tuple[tuple[str, int], ...], seed: int, rng: random.Random
) -> Iterator[tuple[Stage, list[Example]]]:
    """Yield batches without end, drawn from the stages of a run by their frequencies."""
    sources = {}
    for name, _ in parts:
        stage = STAGES[name]
        source = LabelledCrops(
            data, fonts, stage.height, stage.width, stage.real_share, stage.blank_share, seed, stage.sampling
        )
        sources[name] = iter(DataLoader(source, stage.batch, num_workers=1, prefetch_factor=6, collate_fn=list))
    names, frequencies = zip(*parts, strict=True)
    while True:
        (name,) = rng.choices(names, frequencies)
        if batch := [e for e in next(sources[name]) if len(e.pairs)]:
            yield STAGES[name], batch


def train(
    data: Path, fonts: Path, name: str, steps: int, seed: int, every: int = 25, start: Path | None = None,
    bfloat16: bool = False, rope_fixed_pairs: int | None = None, eighth_scale: bool = False,
) -> list[dict[str, float]]:  # fmt: skip
    """Train or resume a run.

    Args:
        data: Folder with pages and checkpoints.
        fonts: Folder with fonts.
        name: Name of the run.
        steps: Total number of steps.
        seed: Random seed.
        every: Steps per point of the curve.
        start: Exported model to continue from.
        bfloat16: Compute in bfloat16.
        rope_fixed_pairs: See `load_start`.
        eighth_scale: See `load_start`.

    Returns:
        The training curve.
    """
    run = RUNS[name]
    stage = STAGES[run.parts[0][0]]
    assert start is not None or not stage.universal, "the stage agc continues from an exported model: pass --start"
    model, vocabulary, weights = load_start(
        data, start, stage.universal,
        eighth_scale=eighth_scale, is_causal=run.is_causal, rope_fixed_pairs=rope_fixed_pairs,
    )  # fmt: skip
    reset_attention(model, run.reset_layers)
    path = data / f"{name}.pt"
    state = checkpoint.load(path)
    follows = state is None and start is None and name == "pages"
    previous = checkpoint.load(data / "words.pt") if follows else None
    if follows:
        assert previous is not None, "run the stage words first"
        model.load_state_dict(previous["model"])
    for part in ("words", "spelling", *stage.frozen):
        model.get_submodule(part).requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, stage.learning_rate, weight_decay=0.02, betas=(0.9, 0.98))
    if previous is not None:
        # New moments would undo in a few steps what the previous stage has learned.
        optimiser.load_state_dict({**previous["optimiser"], "param_groups": optimiser.state_dict()["param_groups"]})
    step, seconds, curve = 0, 0.0, []
    if state is not None:
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        step, seconds, curve = state["step"], state["seconds"], state["curve"]
    average = RunningAverage(model, state and state["average"], step)
    sampler = CandidateSampler(model, vocabulary)
    model.train()
    model.stem.reader.eval()  # batch statistics stay those of stage 1
    rng = random.Random(f"{seed}/{step}")
    reports: list[dict[str, float]] = []
    saved, computed = time.time(), seconds - time.process_time()
    config = {key: getattr(model.config, key) for key in ("rope_fixed_pairs", "eighth_scale", "is_causal")}
    batches = stream_batches(data, fonts, run.parts, seed + 1000 * step + 7, rng)
    while step < steps:
        part_stage, batch = next(batches)
        loss, report = batch_loss(model, sampler, weights, part_stage, batch, rng, bfloat16)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimiser.param_groups:
            group["lr"] = stage.learning_rate * rate_factor(step, steps)
        if norm.isfinite():
            optimiser.step()
            average.update()
        step += 1
        reports.append({"loss": loss.item(), "norm": norm.item(), **report})
        if step % every == 0:
            seconds, spent = computed + time.process_time(), seconds
            mean = {k: float(np.mean([r[k] for r in reports if k in r])) for k in dict.fromkeys(chain(*reports))}
            curve.append({"step": step, "seconds": seconds, **mean})
            print(f"step {step}  " + "  ".join(f"{k} {v:.3f}" for k, v in mean.items())
                  + f"  {(seconds - spent) / every:.2f} CPU s/step", flush=True)  # fmt: skip
            reports = []
        if time.time() - saved > SAVE_SECONDS or step == steps:
            checkpoint.save(path, model=model.state_dict(), average=average.state_dict(), step=step, curve=curve,
                            optimiser=optimiser.state_dict(), seconds=computed + time.process_time(),
                            config=config)  # fmt: skip
            saved = time.time()
    return curve


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--stage", choices=sorted(RUNS), required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="exported model to continue from, such as the shipped weights")
    parser.add_argument("--rope-fixed-pairs", type=int, help="rotary pairs per axis that do not rotate")
    parser.add_argument("--eighth-scale", action="store_true", help="read an eighth of the size too, for large type")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16; slower without hardware support")
    arguments = parser.parse_args()
    train(
        arguments.data, arguments.fonts, arguments.stage, arguments.steps, arguments.seed, start=arguments.start,
        bfloat16=arguments.bfloat16, rope_fixed_pairs=arguments.rope_fixed_pairs, eighth_scale=arguments.eighth_scale,
    )  # fmt: skip


if __name__ == "__main__":
    main()
