"""`anchorfold.load`: from a name or folder to a retriever, with one clear sentence for everything that can go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from anchorfold.attention.layer_settings import DEFAULT_MODEL, settings_for
from anchorfold.backbones.base import Retriever, submodule
from anchorfold.backbones.colqwen25 import MAX_VISUAL_TOKENS, ColQwen25, ColQwen25Model, add_adapter
from anchorfold.backbones.device import choose_device
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.query_side import WEIGHTS
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.backbones.nemotron import NemotronColEmbed
from anchorfold.backbones.nemotron_model import KEY_MAPPING, POOLING_HEAD, NemotronConfig, NemotronModel
from anchorfold.backbones.pickled import require_safetensors
from anchorfold.backbones.retrieval_heads import ColModernVBert, ColPali, ColQwen2, RetrievalHead
from anchorfold.backbones.strict import load_strictly

_HEADS: dict[str, tuple[type[RetrievalHead], str, str]] = {
    "colpali": (ColPali, "ColPaliForRetrieval", "ColPaliProcessor"),
    "colqwen2": (ColQwen2, "ColQwen2ForRetrieval", "ColQwen2Processor"),
    "colmodernvbert": (ColModernVBert, "ColModernVBertForRetrieval", "ColModernVBertProcessor"),
}


def load(
    model: Any,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    bidirectional: bool | None = None,
    merge_adapters: bool = True,
    revision: str | None = None,
    allow_pickle: bool = False,
) -> Retriever:
    """A retriever from a model hub name, a local folder, or a sentence-transformers `MultiVectorEncoder`.

    Args:
        model: "nano" (it ships with this package), "vidore/colpali-v1.3-hf", "./my-checkpoint", or an encoder object.
        device: "cuda", "mps", "cpu"; the best one there is if None.
        dtype: bfloat16 on CUDA and float32 elsewhere if None.
        trust_remote_code: allow a checkpoint that is loaded through sentence-transformers to run its own Python code.
        bidirectional: True removes ColQwen2.5's causal mask, as the paper does; None keeps what the checkpoint says.
        merge_adapters: fold LoRA adapters into the weights (False keeps them apart).
        revision: of a hub model.
        allow_pickle: open weights in pickle files (`pytorch_model.bin`) too, which may run code.
    """
    device = choose_device(device)
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    if not isinstance(model, (str, Path)):
        from anchorfold.backbones.multivector import MultiVectorRetriever

        return MultiVectorRetriever(model, type(model).__name__)
    name = str(model)
    if name == DEFAULT_MODEL:
        return Nano.load(WEIGHTS, name, device, dtype)
    folder = Path(name) if Path(name).is_dir() else None
    config = read_config(name, folder, revision)
    kind = config.get("model_type", "")
    options: dict[str, Any] = {"revision": revision, "dtype": dtype}
    if not allow_pickle:
        require_safetensors(name, revision)
        options["use_safetensors"] = True
    if "peft_type" in config:
        return _with_adapters(name, folder, config, device, options, bidirectional, merge_adapters)
    if kind == NanoConfig.model_type and folder is not None:
        return Nano.load(folder, name, device, dtype)
    if kind in _HEADS:
        return _head(kind, name, folder, device, options)
    if kind == "qwen2_5_vl":
        return _colqwen25(name, folder, device, options, bidirectional)
    if _is_nemotron(config):
        return _nemotron(name, folder, config, device, options)
    return _multivector(name, device, options, trust_remote_code)


def read_config(name: str, folder: Path | None, revision: str | None) -> dict[str, Any]:
    """The checkpoint's `config.json` or, for adapters, `adapter_config.json`."""
    if folder is None and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        raise FileNotFoundError(f"there is no model folder {name!r}: give a folder, or a hub name such as owner/model.")
    for file in ("adapter_config.json", "config.json"):
        path = folder / file if folder else _from_hub(name, file, revision)
        if path is not None and path.is_file():
            return json.loads(path.read_text())
    raise FileNotFoundError(f"{name} holds no config.json: it is not a model checkpoint.")


def _from_hub(name: str, file: str, revision: str | None) -> Path | None:
    """A file of a hub model, downloaded or cached; None if the model does not have it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except RepositoryNotFoundError:
        raise FileNotFoundError(f"the model hub has no public model {name!r}: check the name, or log in.") from None
    except (LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        if file != "config.json":
            return None  # offline, an absent optional file and an unreachable one look the same
        raise ConnectionError(
            f"cannot reach the model hub for {name!r}, and it is not in the local cache: connect to the network once, "
            "or give a local folder."
        ) from None


def _head(kind: str, name: str, folder: Path | None, device: torch.device, options: dict[str, Any]) -> Retriever:
    import transformers

    retriever, model_class, processor_class = _HEADS[kind]
    model = _pretrained(getattr(transformers, model_class), name, options).to(device)
    processor = _processor(getattr(transformers, processor_class), name, options["revision"])
    layers = len(submodule(model, retriever.layers_path))
    return retriever(model, processor, settings_for(retriever.family, layers, folder), name)


def _colqwen25(
    name: str, folder: Path | None, device: torch.device, options: dict[str, Any], bidirectional: bool | None
) -> ColQwen25:
    from transformers import AutoImageProcessor, AutoTokenizer

    model = _pretrained(
        ColQwen25Model,
        name,
        options,
        key_mapping={
            r"^model\.(?=visual|language_model)": "",
            r"^model\.(?=layers|norm|embed_tokens)": "language_model.",
        },
    )
    causal = getattr(model.config.text_config, "is_causal", True)
    if bidirectional or (bidirectional is None and not causal):
        model.remove_causal_mask()
    tokenizer = AutoTokenizer.from_pretrained(name, revision=options["revision"], padding_side="left")
    images = AutoImageProcessor.from_pretrained(name, revision=options["revision"], backend="pil")
    side = images.patch_size * images.merge_size
    images.size["longest_edge"] = min(images.size["longest_edge"], MAX_VISUAL_TOKENS * side * side)
    settings = settings_for("colqwen2.5", len(model.language_model.layers), folder)
    return ColQwen25(model.to(device), tokenizer, images, settings, name)


def _with_adapters(
    name: str, folder: Path | None, config: dict[str, Any], device: torch.device, options: dict[str, Any],
    bidirectional: bool | None, merge: bool,
) -> Retriever:  # fmt: skip
    base = config["base_model_name_or_path"]
    base_folder = Path(base) if Path(base).is_dir() else None
    base_kind = read_config(base, base_folder, None).get("model_type")
    if base_kind != "qwen2_5_vl":
        raise ValueError(
            f"{name} holds adapters for a {base_kind} model; only ColQwen2.5's are read. For ColPali, load the "
            "merged checkpoint vidore/colpali-v1.3-hf."
        )
    if options.get("use_safetensors"):
        require_safetensors(base)
    retriever = _colqwen25(base, base_folder, device, {**options, "revision": None}, bidirectional)
    if folder is None:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(name, revision=options["revision"], allow_patterns=["adapter_*"]))
    add_adapter(retriever.model, folder, merge)
    retriever.model.to(device).eval()
    retriever.name = name
    return retriever


def _nemotron(
    name: str, folder: Path | None, config: dict[str, Any], device: torch.device, options: dict[str, Any]
) -> NemotronColEmbed:
    from transformers import PreTrainedTokenizerFast

    file = "processor_config.json"
    path = folder / file if folder else _from_hub(name, file, options["revision"])
    processor = json.loads(path.read_text()) if path is not None and path.is_file() else {}
    shape = NemotronConfig.from_files(name, config, processor)
    model = _pretrained(NemotronModel, name, options, config=shape, key_mapping=KEY_MAPPING, not_used=POOLING_HEAD)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(name, revision=options["revision"], padding_side="left")
    settings = settings_for("nemotron", len(model.language_model.layers), folder)
    return NemotronColEmbed(model.to(device), tokenizer, settings, name)


def _multivector(name: str, device: torch.device, options: dict[str, Any], trust: bool) -> Retriever:
    try:
        from sentence_transformers import MultiVectorEncoder
    except ImportError:
        raise ImportError(
            f"{name} is loaded through sentence-transformers: `pip install 'anchorfold[multivector]'`."
        ) from None
    from anchorfold.backbones.multivector import MultiVectorRetriever

    weights = {key: value for key, value in options.items() if key != "revision"}
    encoder = MultiVectorEncoder(
        name, device=str(device), revision=options["revision"], trust_remote_code=trust, model_kwargs=weights
    )
    return MultiVectorRetriever(encoder, name)


def _is_nemotron(config: dict[str, Any]) -> bool:
    """A vision tower and a Llama of NVIDIA's making; its larger siblings are Qwen3-VL inside, and other classes."""
    names = " ".join([config.get("model_type", ""), *(config.get("architectures") or [])]).lower()
    known = "img_context_token_id" in config or "nemotron" in names or "nemoretriever" in names
    return known and {"vision_config", "llm_config"} <= config.keys()


def _pretrained(cls: Any, name: str, options: dict[str, Any], **more: Any) -> Any:
    try:
        return load_strictly(cls, name, **options, **more)
    except OSError as error:
        raise FileNotFoundError(f"{name} cannot be loaded: {str(error).splitlines()[0]}") from error


def _processor(cls: Any, name: str, revision: str | None) -> Any:
    # Pages are resized by Pillow everywhere: torchvision is not needed, and results do not depend on it.
    return cls.from_pretrained(name, revision=revision, backend="pil")
