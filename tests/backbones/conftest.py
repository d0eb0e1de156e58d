import pytest
import torch

from anchorfold.testing.tiny import make_tokenizer


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """The folder of a small random BERT, which sentence-transformers makes a ColBERT of: BERT, a projection, L2."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    tokenizer = make_tokenizer(
        ["[PAD]", "[CLS]", "[SEP]", "[MASK]"],
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=48
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def colbert(bert, tmp_path_factory):
    """The same, saved by sentence-transformers with its projection."""
    from sentence_transformers import MultiVectorEncoder

    folder = tmp_path_factory.mktemp("colbert")
    torch.manual_seed(0)
    MultiVectorEncoder(str(bert), device="cpu", local_files_only=True).save(str(folder))
    return folder


# colpali-engine's: the language layers and the projection.
LORA_TARGETS = (
    r"(.*(model)(?!.*visual).*(down_proj|gate_proj|up_proj|k_proj|q_proj|v_proj|o_proj).*$|.*(custom_text_proj).*$)"
)


@pytest.fixture(scope="session")
def adapter(checkpoints, tmp_path_factory):
    """LoRA adapters as colpali-engine's trainers save them, on the language layers and the projection."""
    from peft import LoraConfig, get_peft_model

    from anchorfold.backbones.colqwen_model import ColQwen25Model

    torch.manual_seed(1)
    base = ColQwen25Model.from_pretrained(checkpoints["colqwen2.5"])
    tuned = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=LORA_TARGETS, init_lora_weights=False))
    folder = tmp_path_factory.mktemp("adapter")
    tuned.peft_config["default"].base_model_name_or_path = str(checkpoints["colqwen2.5"])
    tuned.save_pretrained(folder)
    return folder
