"""Stages 2 and 3: teach patches to print the vectors of their words, then whole pages to know what matters.

python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage words --steps 2000
python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage pages --steps 2000

The stage called crops goes on with reading alone, on small pieces: about three times as many patches an hour. The one
called mixed takes steps of crops, and some of pages among them, so that what matters is not forgotten meanwhile.

python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage mixed --start WEIGHTS --steps 12000

The one called settled goes on from a copy of that checkpoint, with more pages, while the rate comes to rest: what
matters, and survives folding, is learnt on pages alone. With as many steps again all of them are in the falling part.

cp DATA_FOLDER/mixed.pt DATA_FOLDER/settled.pt
python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage settled --start WEIGHTS --steps 15000

The checkpoint holds a running average of the weights too, which is what `export` writes: a run may be cut at any time.

The stage called agc makes another model, for the trained baseline: AGC's universal tokens, learnt along with the rest.

python -m training.nano.matching DATA_FOLDER FONT_FOLDER --stage agc --start WEIGHTS --steps 200
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

from anchorfold.backbones.nano.model import NanoModel, patch_positions
from anchorfold.focus import layer_score, propagate
from training.nano import checkpoint, losses
from training.nano.average import RunningAverage
from training.nano.candidates import WordPool, folding_losses, word_losses
from training.nano.examples import Example, WordPieces, word_values
from training.nano.reading import name_loss
from training.nano.stages import MIXES, STAGES, Stage, load_start, recorded

FOCUS_LAYERS = (3, 4)  # a fifth of the depth past the middle, as in the paper's backbones: trained where to gather
FOCUS_STEPS = (2, 6)
SAVE_SECONDS = 240
WARM_STEPS = 150
RESTING = 0.5  # of a run, while the rate comes to rest
REPEATS = 0.3  # weight of asking repeats to point at their anchor, beside where attention gathers


def batch_loss(
    model: NanoModel,
    pool: WordPool,
    weights: dict[str, float],
    stage: Stage,
    batch: list[Example],
    rng: random.Random,
    half: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    rows, columns = stage.height // 16, stage.width // 32
    grid = patch_positions(rows, columns)
    pixels = torch.stack([e.pixels for e in batch])
    named: list[Tensor] = []
    listening = model.stem.reader.register_forward_hook(lambda _module, _inputs, output: named.append(output[1]))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        patches = model.stem(pixels)
        hidden = model.encode([p[e.kept] for p, e in zip(patches, batch, strict=True)], [grid[e.kept] for e in batch])
    listening.remove()
    hidden = hidden[:, model.config.registers :].float()
    vectors = [F.normalize(model.projection(h[: len(e.kept)]), dim=-1) for h, e in zip(hidden, batch, strict=True)]
    candidates = pool.draw(batch, rng)
    parts, right = word_losses(vectors, batch, candidates)
    # The patch alone, before it has met its neighbours, is asked as well: a short way for the gradient to the stem.
    alone = torch.cat([model.projection(model.norm(p[e.kept].float())) for p, e in zip(patches, batch, strict=True)])
    first, right_first = losses.reading_loss(F.normalize(alone, dim=-1), candidates.vectors, *candidates.labels(batch))
    loss = (
        parts["read"] + 0.5 * parts["find"] + 0.5 * first + stage.pretence * (parts["pretence"] + 0.5 * parts["paper"])
    )
    report = {name: part.item() for name, part in parts.items()} | {"right": right, "alone": right_first.item()}
    real = [b for b, e in enumerate(batch) if e.real]
    pieces, full = [batch[b] for b in real], [vectors[b] for b in real]
    values = [word_values(e, weights) for e in pieces]
    registers = model.config.registers
    if real and stage.universal:
        query, key = recorded(model, -1)
        scores = [
            losses.universal_saliency(
                query[b, :, registers - stage.universal : registers], key[b, :, : registers + len(e.kept)], len(e.kept)
            )
            for b, e in zip(real, pieces, strict=True)
        ]
    elif real and stage.centrality:
        value_vectors = [torch.tensor(list(a.values())) for a in values]
        word_vectors = [candidates.vectors[[candidates.number[w] for w in a]] for a in values]
        query, key = recorded(model, rng.choice(FOCUS_LAYERS))
        visual = [slice(registers, registers + len(e.kept)) for e in pieces]
        graphs = [(query[b, :, v], key[b, :, v]) for b, v in zip(real, visual, strict=True)]
        focus, scores = focus_loss(
            graphs, pieces, full, word_vectors, value_vectors, rng.choice(FOCUS_STEPS), rows * columns
        )
        loss = loss + stage.centrality * sum(focus.values())
        report |= {name: part.item() for name, part in focus.items()}
    if real and stage.page_loss:
        ratio = rng.choice([0.05, 0.05, 0.1, 0.2])
        # Blank patches are thinned out while training: keep the number of vectors, not the share.
        ratios = [min(1.0, ratio * rows * columns / len(e.kept)) for e in pieces]
        if stage.universal:  # AGC averages vectors, AnchorFold what they are projected from
            pages = [losses.folded(*p, lambda v: v) for p in zip(full, scores, ratios, strict=True)]
        else:
            states = [hidden[b, : len(e.kept)] for b, e in zip(real, pieces, strict=True)]
            pages = [losses.folded(*p, model.projection) for p in zip(states, scores, ratios, strict=True)]
        page, lost = folding_losses(full, pages, pieces, values, candidates)
        loss = loss + stage.page_loss * page + stage.retention * lost
        report |= {"page": page.item(), "lost": lost.item()}
    if not stage.frozen_stem:
        # A model that does not look at an eighth of the size is not asked what stands there.
        sizes = zip(named, zip(*(e.characters for e in batch), strict=True), strict=False)
        characters = torch.stack([name_loss(seen.float(), torch.stack(labels))[0] for seen, labels in sizes])
        loss = loss + 0.1 * characters[0] + 0.05 * characters[1:].sum()
        report |= {"character": characters[0].item(), "large": characters[1:].mean().item()}
    return loss, report


def focus_loss(
    graphs: list[tuple[Tensor, Tensor]], pieces: list[Example], vectors: list[Tensor], words: list[Tensor],
    values: list[Tensor], steps: int, patches: int,
) -> tuple[dict[str, Tensor], list[Tensor]]:  # fmt: skip
    """How far attention of a focus layer is from patches that cover each piece's words, and its centrality `(N,)`.

    Args:
        graphs: queries and keys `(H, N, d)` of each piece's patches in the layer.
        vectors: `(N, 128)` of each piece's kept patches.
        words, values: `(W, 128)` and `(W,)` its distinct words and how likely each is asked for.
        steps: propagation depth.
        patches: of a whole piece, blank ones included: a fifth of them may become anchors.
    """
    sizes = [patches // times for times in (5, 10, 20)]
    scores, parts = [], []
    for (query, key), e, page, word_vectors, value in zip(graphs, pieces, vectors, words, values, strict=True):
        graph = losses.attention(query, key)  # among the patches alone, as the tap sees it
        score = layer_score(propagate(graph, steps))
        printed = e.pairs[:, 0].unique()
        anchors, added = losses.cover_words(page[printed].detach(), word_vectors, value, patches // 5)
        gathered = losses.centrality_loss(score, printed[anchors], added)
        chosen = losses.selection_loss(score, printed[anchors], sizes)
        repeats = REPEATS * losses.repeat_loss(graph, page.detach(), printed, anchors, added)
        parts.append(torch.stack((gathered, chosen, repeats)))
        scores.append(score)
    return dict(zip(("gathered", "chosen", "repeats"), torch.stack(parts).mean(0), strict=True)), scores


def share_of_rate(step: int, steps: int) -> float:
    """Up at the beginning, held, and down to rest over the last part of the run."""
    return min(1.0, (step + 1) / min(WARM_STEPS, 0.1 * steps), (steps - step) / (RESTING * steps))


def loaded_batches(
    data: Path, fonts: Path, parts: tuple[tuple[str, int], ...], seed: int, rng: random.Random
) -> Iterator[tuple[Stage, list[Example]]]:
    """Batches without end, of each of the `parts` (stages) as often as its number says."""
    sources = {}
    for name, _ in parts:
        stage = STAGES[name]
        source = WordPieces(data, fonts, stage.height, stage.width, stage.real, stage.blank_kept, seed)
        sources[name] = iter(DataLoader(source, stage.batch, num_workers=1, prefetch_factor=6, collate_fn=list))
    names, often = zip(*parts, strict=True)
    while True:
        (name,) = rng.choices(names, often)
        if batch := [e for e in next(sources[name]) if len(e.pairs)]:
            yield STAGES[name], batch


def train(
    data: Path, fonts: Path, name: str, steps: int, seed: int, every: int = 25, start: Path | None = None,
    half: bool = False, still: int | None = None, eighth: bool = False,
) -> list[dict[str, float]]:  # fmt: skip
    """Train or resume a stage; returns its curve.

    Args:
        data, fonts: where pages, fonts and checkpoints are.
        name: which stage, or mix of stages.
        steps, seed, every: how long, from which random numbers, and how often the curve gets a point.
        start: an exported model to go on with.
        half: compute in bfloat16.
        still: how many pairs of each half of a head shall not turn with the position; as in `start` if not given.
        eighth: look at an eighth of the size too, also where `start` does not.
    """
    parts = MIXES.get(name, ((name, 1),))
    stage = STAGES[parts[0][0]]
    assert start is not None or not stage.universal, "the stage called agc goes on from an exported model"
    model, index, weights = load_start(data, start, stage.universal, eighth)
    if still is not None:
        model.config.rope_still = still
    path = data / f"{name}.pt"
    state = checkpoint.load(path)
    follows = state is None and start is None and name == "pages"
    before = checkpoint.load(data / "words.pt") if follows else None
    if follows:
        assert before is not None, "run the stage called words first"
        model.load_state_dict(before["model"])
    for parameter in (*model.words.parameters(), *model.spelling.parameters()):
        parameter.requires_grad_(False)
    if stage.frozen_stem:
        model.stem.reader.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, stage.rate, weight_decay=0.02, betas=(0.9, 0.98))
    if before is not None:
        # Fresh moments would undo in a few steps what the stage before has learnt.
        optimiser.load_state_dict({**before["optimiser"], "param_groups": optimiser.state_dict()["param_groups"]})
    step, seconds, curve = 0, 0.0, []
    if state is not None:
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        step, seconds, curve = state["step"], state["seconds"], state["curve"]
    average = RunningAverage(model, state and state["average"], step)
    pool = WordPool(model, index)
    model.train()
    model.stem.reader.eval()  # batch statistics stay those of stage 1
    rng = random.Random(f"{seed}/{step}")
    reports: list[dict[str, float]] = []
    saved, computed = time.time(), seconds - time.process_time()
    batches = loaded_batches(data, fonts, parts, seed + 1000 * step + 7, rng)
    while step < steps:
        part, batch = next(batches)
        loss, report = batch_loss(model, pool, weights, part, batch, rng, half)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimiser.param_groups:
            group["lr"] = stage.rate * share_of_rate(step, steps)
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
                            still=model.config.rope_still, eighth=model.config.eighth)  # fmt: skip
            saved = time.time()
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--stage", choices=sorted([*STAGES, *MIXES]), required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="an exported model to go on with, such as the shipped weights")
    parser.add_argument("--still", type=int, help="pairs of a head's two halves that do not turn with the position")
    parser.add_argument("--eighth", action="store_true", help="look at an eighth of the size too: large type")
    parser.add_argument("--bfloat16", action="store_true", help="faster where the processor has it (try it first)")
    arguments = parser.parse_args()
    train(arguments.data, arguments.fonts, arguments.stage, arguments.steps, arguments.seed, start=arguments.start,
          half=arguments.bfloat16, still=arguments.still, eighth=arguments.eighth)  # fmt: skip


if __name__ == "__main__":
    main()
