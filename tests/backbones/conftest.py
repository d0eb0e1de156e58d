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
