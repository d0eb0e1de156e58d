"""Compressors as token pooling in sentence-transformers."""

import pytest
import torch

import anchorfold
from anchorfold.errors import AnchorFoldError

sentence_transformers = pytest.importorskip("sentence_transformers")
from anchorfold.integrations.sentence_transformers import CompressorPooling  # noqa: E402
from tests.backbones.conftest import bert  # noqa: E402, F401

TEXTS = ["net revenue by region and by quarter", "a short page", "staff costs"]


@pytest.fixture
def encoder(bert):  # noqa: F811
    return sentence_transformers.MultiVectorEncoder(str(bert), device="cpu", local_files_only=True)


def test_documents_are_compressed_and_queries_are_not(encoder):
    full, queries = encoder.encode_document(TEXTS), encoder.encode_query(TEXTS)
    encoder.append(CompressorPooling(anchorfold.SemanticClustering(ratio=0.5)))
    small = encoder.encode_document(TEXTS)
    for before, after in zip(full, small, strict=True):
        (expected,) = anchorfold.compress_vectors([torch.as_tensor(before)], anchorfold.SemanticClustering(ratio=0.5))
        torch.testing.assert_close(torch.as_tensor(after), expected.vectors)
        assert len(after) == -(-len(before) // 2)
    for before, after in zip(queries, encoder.encode_query(TEXTS), strict=True):
        assert torch.equal(torch.as_tensor(before), torch.as_tensor(after))


def test_save_and_load_with_the_encoder(encoder, tmp_path):
    encoder.append(CompressorPooling(anchorfold.SimilarityFold(cap=3, steps=2)))
    small = encoder.encode_document(TEXTS)
    encoder.save_pretrained(str(tmp_path / "small"))
    again = sentence_transformers.MultiVectorEncoder(
        str(tmp_path / "small"), device="cpu", local_files_only=True, trust_remote_code=True
    )
    pooling = again[-1]
    assert isinstance(pooling, CompressorPooling)
    assert (pooling.compressor, pooling.options) == ("similarity-fold", {"cap": 3, "steps": 2})
    for one, other in zip(small, again.encode_document(TEXTS), strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other))


def test_per_call_and_on_existing_embeddings(encoder):
    pooling = CompressorPooling("1d-pooling", {"ratio": 0.5})
    full = [torch.as_tensor(x) for x in encoder.encode_document(TEXTS)]
    called = encoder.encode_document(TEXTS, token_pooling=pooling)
    for one, other in zip(called, pooling.pool(full), strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_and_data_type(dtype):
    embedding = torch.randn(12, 8, dtype=dtype, requires_grad=True)
    pooled = CompressorPooling(anchorfold.SemanticClustering(cap=4)).pool_one(embedding)
    assert (pooled.shape, pooled.dtype) == ((4, 8), dtype)
    (pooled.float() * torch.randn(4, 8)).sum().backward()
    assert (embedding.grad.abs().sum(1) > 0).all()


def test_raw_means_are_not_normalised(encoder):
    full = [torch.as_tensor(x) for x in encoder.encode_document(TEXTS)]
    for vectors, pooled in zip(full, CompressorPooling("1d-pooling-raw", {"cap": 1}).pool(full), strict=True):
        torch.testing.assert_close(pooled, vectors.mean(0, keepdim=True))


def test_attention_based_compressors_are_rejected():
    with pytest.raises(AnchorFoldError, match=r"anchorfold needs attention.*anchorfold\.attach"):
        CompressorPooling(anchorfold.AnchorFold(ratio=0.1))
