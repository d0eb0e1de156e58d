"""How well nano reads, finds and survives compression; from pixels only.

    python -m training.nano.evaluate words DATA_FOLDER FONT_FOLDER --model FOLDER
    python -m training.nano.evaluate search CORPUS_FOLDER --model FOLDER [--documents NAME ...]

A corpus folder holds `pdfs/` and `queries.jsonl` with {id, text, relevant: [[file, zero-based page]]}.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pypdfium2 as pdfium
import torch
from PIL import Image

import anchorfold
from anchorfold.backbones.nano import Nano
from training.nano import synth
from training.nano.corpus import load_page
from training.nano.labels import group_words, patch_words
from training.nano.vocabulary import load_vocabulary

CANDIDATES = 5000
RATIOS = (0.2, 0.1, 0.05)


def ndcg(ranking: list[int], relevant: set[int], k: int = 5) -> float:
    """Linear gain, as trec_eval computes it."""
    gain = sum(1 / np.log2(i + 2) for i, page in enumerate(ranking[:k]) if page in relevant)
    return float(gain / sum(1 / np.log2(i + 2) for i in range(min(k, len(relevant)))))


def labelled_images(
    data: Path, fonts: Path, count: int, seed: int
) -> Iterator[tuple[str, Image.Image, str, np.ndarray]]:
    """Unseen fonts on invented pages, and unseen documents."""
    rng = random.Random(seed)
    unseen = synth.latin_fonts(fonts, held_out=True)
    words = load_vocabulary(data)[0]
    pages = sorted((data / "pages" / "held_out").glob("*.npz"))
    for _ in range(count):
        image, symbols, boxes = synth.make_crop(rng, unseen, words, 768, 768)
        yield "unseen fonts", image, symbols, boxes
        image, symbols, boxes = load_page(rng.choice(pages))
        yield "unseen documents", image, symbols, boxes


@torch.no_grad()
def read_words(model: Nano, data: Path, fonts: Path, count: int, seed: int = 5) -> dict[str, float]:
    """Share of labelled patches whose word comes first among 5,000."""
    rng = random.Random(seed)
    right: dict[str, list[float]] = {}
    for kind, image, symbols, found in labelled_images(data, fonts, count, seed):
        width, height = model.processor.target_size(*image.size)
        boxes = found * np.array([width / image.width, height / image.height] * 2, np.float32)
        words = group_words(symbols, boxes)
        pairs, shares = patch_words(words, height // 16, width // 32)
        if not len(pairs):
            continue
        (state,) = model.page_states([image])
        texts = list(dict.fromkeys(words.texts))
        extra = [w for w in rng.sample(model.words.words, CANDIDATES) if w not in set(texts)]
        candidates = texts + extra[: max(0, CANDIDATES - len(texts))]
        vectors = model.model.embed_words(*model.words.lookup(candidates)).float()
        answers = (state.embeddings @ vectors.T).argmax(1)
        number = {w: i for i, w in enumerate(candidates)}
        best: dict[int, tuple[float, int]] = {}
        for (patch, word), share in zip(pairs.tolist(), shares.tolist(), strict=True):
            best[patch] = max(best.get(patch, (0.0, -1)), (share, number[words.texts[word]]))
        right.setdefault(kind, []).extend(float(answers[p] == w) for p, (_, w) in best.items())
    return {kind: float(np.mean(r)) for kind, r in right.items()}


def corpus_pages(folder: Path, documents: list[str] | None) -> Iterator[tuple[str, int, Image.Image]]:
    for path in sorted((folder / "pdfs").glob("*.pdf")):
        if documents and path.stem not in documents:
            continue
        pdf = pdfium.PdfDocument(path)
        for number in range(len(pdf)):
            width, height = pdf[number].get_size()
            scale = min(4.0, (900_000 / (width * height)) ** 0.5)
            yield path.name, number, pdf[number].render(scale=scale, grayscale=True).to_pil()


def methods(model: Nano) -> dict[str, anchorfold.Compressor]:
    found: dict[str, anchorfold.Compressor] = {"full": anchorfold.FullIndex()}
    for ratio in RATIOS:
        for name in ("anchorfold", "semantic-clustering", "ward", "sap", "1d-pooling", "random"):
            found[f"{name} {ratio}"] = anchorfold.compressor(name, ratio=ratio)
        found[f"random anchors {ratio}"] = anchorfold.AnchorFold(ratio=ratio, anchors="random")
    return found


def search(
    model: Nano, folder: Path, documents: list[str] | None, wanted: list[str] | None
) -> dict[str, dict[str, float]]:
    """NDCG@5 by kind of query and score retention, for every method, from one encoding pass."""
    lines = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    excluded_file = folder / "exclude_pages.json"
    excluded = json.loads(excluded_file.read_text()) if excluded_file.exists() else {}
    compressors = {k: c for k, c in methods(model).items() if not wanted or k == "full" or k.split(" 0")[0] in wanted}
    signals = list(dict.fromkeys(s for c in compressors.values() for s in c.signals(model.settings)))
    places: dict[tuple[str, int], int] = {}
    pages: dict[str, list[torch.Tensor]] = {name: [] for name in compressors}
    began = time.time()
    for file, number, image in corpus_pages(folder, documents):
        if number in excluded.get(file, []):
            continue
        places[file, number] = len(places)
        (state,) = model.page_states([image], signals)
        for name, compressor in compressors.items():
            pages[name].append(model.compress(state, compressor).vectors)
        if len(places) % 100 == 0:
            print(
                f"{len(places)} pages, {(time.time() - began) / len(places):.2f} s a page", file=sys.stderr, flush=True
            )
    asked = []
    for line in lines:
        relevant = {places[f, p] for f, p in line["relevant"] if (f, p) in places}
        if relevant and line.get("lang", "en") == "en":
            asked.append((line["text"], relevant, line.get("kind", "query")))
    queries = model.encode_queries([text for text, _, _ in asked])
    results: dict[str, dict[str, float]] = {}
    full = anchorfold.maxsim(queries, pages["full"])
    for name, vectors in pages.items():
        scores = full if name == "full" else anchorfold.maxsim(queries, vectors)
        values: dict[str, list[float]] = {"all": [], "retention": []}
        for i, (_, relevant, kind) in enumerate(asked):
            value = ndcg(scores[i].topk(5).indices.tolist(), relevant)
            values["all"].append(value)
            values.setdefault(kind, []).append(value)
            page = min(relevant)
            values["retention"].append(100 * float(scores[i, page] / full[i, page].clamp(min=1e-6)))
        results[name] = {k: float(np.mean(v)) for k, v in values.items()}
        results[name]["kept"] = 100 * results[name]["all"] / max(results["full"]["all"], 1e-9)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["words", "search"])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--documents", nargs="*", help="only these PDFs (names without .pdf)")
    parser.add_argument("--methods", nargs="*", help="only these methods")
    parser.add_argument("--pages", type=int, default=30, help="pages of each kind for `words`")
    arguments = parser.parse_args()
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    if arguments.what == "words":
        for kind, share in read_words(model, *arguments.folders, arguments.pages).items():
            print(f"{kind}: {100 * share:.1f} % of patches name their word first among {CANDIDATES}")
        return
    results = search(model, arguments.folders[0], arguments.documents, arguments.methods)
    columns = list(results["full"])
    print(f"{'method':28}" + "".join(f"{c:>12}" for c in columns))
    for name, row in results.items():
        print(f"{name:28}" + "".join(f"{row[c]:>12.3f}" for c in columns))


if __name__ == "__main__":
    main()
