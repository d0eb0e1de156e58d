"""End-to-end run of a backbone at full size with random weights, from checkpoint files to a search.

    python -m benchmarks.rehearsal colqwen2.5                    # or colqwen2.5-causal, colpali, nemotron
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python -m benchmarks.rehearsal nemotron --folder /tmp/rehearsal

Writes a checkpoint with the published configuration, random weights and the key names of the published files (bfloat16,
sharded safetensors), loads it with `anchorfold.load`, compresses one page with every method, and indexes and searches a
small page; ColQwen2.5 also encodes the page with the universal tokens of AGC. Prints parameters, time and peak memory
per step. The vocabulary of the tokenizer has a few words only. Requires temporary disk space of the size of the
checkpoint, 6 to 9 GB.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from torch import Tensor, nn

import anchorfold
from anchorfold.attention.capture_time import measure_capture_time
from anchorfold.backbones.colqwen import ColQwen
from anchorfold.compressors import AGC
from anchorfold.compressors.base import required_signals
from anchorfold.testing import tiny

SHARD_BYTES = 2_000_000_000
QUERY = "net revenue by region"
GRAPHS = ("mirrored-symmetric", "vision-tower")  # of further runs of AnchorFold, besides the paper's
UNIVERSAL = 128  # tokens and vectors of AGC in appendix C of the paper
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Rehearsal:
    """A published model.

    Args:
        tiny: kind of the tiny checkpoint that provides the tokenizer and other small files.
        build: returns the full model on the meta device and its `config.json` from the tiny configuration.
        rename: maps parameter names to those of the published files.
        resize: changes to the other JSON files of the tiny checkpoint for this size.
    """

    tiny: str
    build: Callable[[dict[str, Any]], tuple[nn.Module, dict[str, Any]]]
    rename: Callable[[str], str]
    resize: dict[str, dict[str, Any]]


def build_colpali(small: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """Build PaliGemma-3B at 448 pixels: SigLIP-so400m and Gemma-2B."""
    from transformers import ColPaliConfig, ColPaliForRetrieval

    vlm = small["vlm_config"]
    vlm["text_config"] |= {
        "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 257216, "num_image_tokens": 1024,
    }  # fmt: skip
    vlm["vision_config"] |= {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
        "image_size": 448, "patch_size": 14, "projection_dim": 2048, "num_image_tokens": 1024, "vision_use_head": False,
    }  # fmt: skip
    config = {**small, "vlm_config": {**vlm, "projection_dim": 2048, "hidden_size": 2048}, "embedding_dim": 128}
    return ColPaliForRetrieval(ColPaliConfig.from_dict(config)), config


def build_colqwen25(small: dict[str, Any], causal: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """Build Qwen2.5-VL-3B, without a causal mask as in the paper or with it as most published checkpoints."""
    from anchorfold.backbones.colqwen_model import ColQwen25Model

    small["text_config"] |= {
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        "layer_types": None, "max_window_layers": 70, "is_causal": causal,
    }  # fmt: skip
    small["vision_config"] |= {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
        "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
    }  # fmt: skip
    config = {**small, "embedding_dim": 128}
    return ColQwen25Model(ColQwen25Model.config_class.from_dict(config)), config


def build_nemotron(small: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """Build SigLIP2-giant at 512 pixels and Llama-3.2-3B."""
    from anchorfold.backbones.nemotron_model import NemotronConfig, NemotronModel

    small["llm_config"] |= {
        "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128266,
    }  # fmt: skip
    small["vision_config"] |= {
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 40, "num_attention_heads": 16,
        "image_size": 512, "patch_size": 16,
    }  # fmt: skip
    config = {**small, "force_image_size": 512}
    return NemotronModel(NemotronConfig.from_files("rehearsal", config, {})), config


def colpali_name(key: str) -> str:
    """Return the key in `vidore/colpali-v1.3-hf`, which was converted with transformers 4.47."""
    key = re.sub(r"^vlm\.language_model\.", "vlm.language_model.model.", key)
    return re.sub(r"^vlm\.vision_tower\.(?!vision_model)", "vlm.vision_tower.vision_model.", key)


REHEARSALS = {
    "colpali": Rehearsal(
        "colpali", build_colpali, colpali_name,
        {"processor_config": {"image_processor": {"size": {"height": 448, "width": 448}, "image_seq_length": 1024}}},
    ),
    "colqwen2.5": Rehearsal(
        "colqwen2.5", build_colqwen25, lambda key: re.sub(r"^language_model\.", "model.", key),
        {"preprocessor_config": {"size": {"shortest_edge": 3136, "longest_edge": 12845056}}},
    ),
    "colqwen2.5-causal": Rehearsal(
        "colqwen2.5", partial(build_colqwen25, causal=True), lambda key: re.sub(r"^language_model\.", "model.", key),
        {"preprocessor_config": {"size": {"shortest_edge": 3136, "longest_edge": 12845056}}},
    ),
    "nemotron": Rehearsal(
        "nemotron", build_nemotron, lambda key: re.sub(r"^vision_model\.", "vision_model.vision_model.", key), {},
    ),
}  # fmt: skip


def initial(name: str, shape: torch.Size) -> Tensor:
    """Return random weights with a stable scale: norms are one, biases zero."""
    if name.endswith("bias"):
        return torch.zeros(shape, dtype=torch.bfloat16)
    if len(shape) == 1:  # norms of Gemma add one to their weight
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02)


def write_checkpoint(rehearsal: Rehearsal, folder: Path) -> int:
    """Write a checkpoint with one shard in memory at a time; return the number of parameters."""
    tiny.make(rehearsal.tiny, folder)
    (folder / "model.safetensors").unlink()
    with torch.device("meta"):
        model, config = rehearsal.build(json.loads((folder / "config.json").read_text()))
    (folder / "config.json").write_text(json.dumps(config))
    for name, changes in rehearsal.resize.items():
        path = folder / f"{name}.json"
        content = json.loads(path.read_text())
        for key, value in changes.items():
            content[key] = {**content[key], **value} if isinstance(value, dict) else value
        path.write_text(json.dumps(content))
    shapes = {rehearsal.rename(name): weight.shape for name, weight in model.named_parameters()}
    shards: list[list[str]] = [[]]
    room = SHARD_BYTES
    for name, shape in shapes.items():
        if shards[-1] and room < 2 * shape.numel():
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(name)
        room -= 2 * shape.numel()
    torch.manual_seed(0)
    where: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: initial(name, shapes[name]) for name in names}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(names, file)
    total = sum(shape.numel() for shape in shapes.values())
    index = {"metadata": {"total_size": 2 * total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def page_image() -> Image.Image:
    """Return a US letter page at 200 dpi with words and a table."""
    page = Image.new("RGB", (1700, 2200), "white")
    draw = ImageDraw.Draw(page)
    for line in range(40):
        draw.text((150, 120 + 48 * line), f"{line} net revenue by region, the table of page {line * 7 % 13}", "black")
    for row in range(6):
        draw.rectangle((900, 300 + 90 * row, 1500, 380 + 90 * row), outline="black", width=3)
    return page


@contextmanager
def step(name: str, rows: list[dict[str, Any]]) -> Iterator[None]:
    """Print and record the duration and peak memory of a block."""
    _reset_peak()
    began = time.perf_counter()
    yield
    row = {"step": name, "seconds": round(time.perf_counter() - began, 1), "peak_gb": round(_peak() / 1e9, 1)}
    rows.append(row)
    print(f"{name:<34}{row['seconds']:>9.1f} s {row['peak_gb']:>8.1f} GB", flush=True)


def _reset_peak() -> None:
    """Reset the peak memory on Linux; elsewhere peaks are since the start of the process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Return the peak resident memory in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])  # type: ignore[index]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def rehearse(kind: str, folder: Path, dtype: torch.dtype, ratio: float) -> dict[str, Any]:
    """Run all steps of one backbone; `folder` must be empty."""
    rows: list[dict[str, Any]] = []
    with step("write the checkpoint", rows):
        parameters = write_checkpoint(REHEARSALS[kind], folder / "checkpoint")
    print(f"{parameters:,} parameters, {2 * parameters / 1e9:.1f} GB as bfloat16", flush=True)
    with step(f"load as {str(dtype).removeprefix('torch.')}", rows):
        model = anchorfold.load(folder / "checkpoint", dtype=dtype, device="cpu")
    print(
        f"window {model.layer_settings.window}, K {model.layer_settings.steps}, from {model.layer_settings.source}",
        flush=True,
    )
    with step("find out whether it is causal", rows):
        causal = model.is_causal
    page = page_image()
    compressors = [
        anchorfold.compressors.compressor(name, **({} if name == "none" else {"ratio": ratio}))
        for name in anchorfold.compressors.compressor_names()
        if name != AGC.name  # run separately: its tokens change the page for other methods
    ]
    compressors += [anchorfold.AnchorFold(ratio=ratio, graph=graph) for graph in GRAPHS]
    signals = required_signals(compressors, model.layer_settings)
    with step("encode a page for all methods", rows), measure_capture_time() as capture:
        (state,) = model.page_states([page], signals)
    rows[-1]["capture_seconds"] = round(capture.seconds, 1)
    print(f"{len(signals)} signals, captured in {capture.seconds:.1f} s of these", flush=True)
    vectors = {}
    for compressor in compressors:
        name = " ".join(filter(None, (compressor.name, compressor.options.get("graph"))))
        with step(f"compress: {name}", rows):
            ready = compressor if compressor.ready else compressor.calibrate([state], model.layer_settings)
            vectors[name] = len(model.compress_page(state, ready))
    page.crop((0, 0, 512, 512)).save(folder / "page.png")
    with step("index a page of 512 x 512", rows):
        index = anchorfold.Index.create(folder / "rehearsal.index", model, anchorfold.AnchorFold(ratio=ratio))
        index.add(folder / "page.png")
    with step("search", rows):
        (hit,) = index.search(QUERY, top_k=1)
    tokens = len(state.hidden)
    if isinstance(model, ColQwen):
        vectors[AGC.name] = rehearse_agc(model, page, rows)
    print(f"{tokens:,} visual tokens of {model.dim} dimensions; vectors after: {vectors}", flush=True)
    print(
        f"{'causal' if causal else 'bidirectional'}; {hit.document} page {hit.page} scores {hit.score:.3f}", flush=True
    )
    return {
        "model": kind, "parameters": parameters, "dtype": str(dtype), "causal": causal, "steps": rows,
        "visual_tokens": tokens, "dim": model.dim, "vectors": vectors,
    }  # fmt: skip


def rehearse_agc(model: ColQwen, page: Image.Image, rows: list[dict[str, Any]]) -> int:
    """Run AGC of appendix C with untrained universal tokens; return the number of compressed vectors."""
    model.add_universal_tokens(UNIVERSAL)
    agc = AGC(cap=UNIVERSAL)
    with step(f"encode it with {UNIVERSAL} universal tokens", rows):
        (state,) = model.page_states([page], agc.signals(model.layer_settings))
    with step(f"compress: {AGC.name}", rows):
        return len(model.compress_page(state, agc))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(REHEARSALS))
    parser.add_argument("--folder", type=Path, help="where the checkpoint goes; a temporary folder if not given")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("-o", "--output", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", anchorfold.errors.UncalibratedWarning)
    folder = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=arguments.folder))
    try:
        figures = rehearse(arguments.model, folder, DTYPES[arguments.dtype], arguments.ratio)
    finally:
        shutil.rmtree(folder)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
