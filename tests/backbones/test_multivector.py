"""sentence-transformers' MultiVectorEncoder: as a backbone, and compressed in place."""

import pytest
import torch

import anchorfold
from anchorfold.backbones.multivector import MultiVectorBackbone
from anchorfold.core.budget import vector_budget

sentence_transformers = pytest.importorskip("sentence_transformers")


def encoder_for(folder):
    return sentence_transformers.MultiVectorEncoder(
        str(folder), device="cpu", processor_kwargs={"backend": "pil"}, local_files_only=True
    )


# ColModernVBert is not here: sentence-transformers 6.2 itself cannot encode its pages yet (its processor
# writes the page prompt in `process_images`, which that version does not call).
@pytest.fixture(scope="module", params=["colpali", "colqwen2"])
def vision(request, checkpoints):
    return request.param, encoder_for(checkpoints[request.param])


@pytest.fixture(scope="module")
def text_encoder(bert):
    return encoder_for(bert)


class TestAttach:
    def test_documents_fold_and_queries_do_not(self, vision, images):
        _, encoder = vision
        queries = encoder.encode_query(["net revenue by region"])
        full = encoder.encode_document(images)
        anchorfold.attach(encoder, anchorfold.AnchorFold(ratio=0.25))
        try:
            folded = encoder.encode_document(images)
            assert torch.equal(encoder.encode_query(["net revenue by region"])[0], queries[0])
            for small, large in zip(folded, full, strict=True):
                assert len(small) < len(large)
                torch.testing.assert_close(small.norm(dim=1), torch.ones(len(small)))
        finally:
            anchorfold.detach(encoder)
        for again, large in zip(encoder.encode_document(images), full, strict=True):
            assert torch.equal(again, large)

    @pytest.mark.parametrize("graph", ["attention", "vision-tower"])
    def test_equals_our_own_backbone(self, vision, models, images, graph):
        kind, encoder = vision
        compressor = anchorfold.AnchorFold(ratio=0.25, graph=graph)
        expected = models[kind].encode_documents(images, compressor)
        anchorfold.attach(encoder, compressor)
        try:
            for size in (1, 4):
                folded = encoder.encode_document(images, batch_size=size)
                for vectors, page in zip(folded, expected, strict=True):
                    torch.testing.assert_close(vectors, page.vectors, atol=1e-5, rtol=0)
        finally:
            anchorfold.detach(encoder)

    def test_twice_and_never(self, vision):
        _, encoder = vision
        anchorfold.attach(encoder, anchorfold.Pooling1D(ratio=0.5))
        try:
            with pytest.raises(ValueError, match="already attached to this encoder"):
                anchorfold.attach(encoder, anchorfold.Pooling1D(ratio=0.5))
        finally:
            anchorfold.detach(encoder)
        with pytest.raises(ValueError, match="no compressor is attached"):
            anchorfold.detach(encoder)
        with pytest.raises(TypeError, match="MultiVectorEncoder"):
            anchorfold.attach(torch.nn.Linear(2, 2), anchorfold.Pooling1D(ratio=0.5))

    def test_a_failing_forward_leaves_the_encoder_usable(self, vision, images, monkeypatch):
        _, encoder = vision
        full = encoder.encode_document(images[:1])
        anchorfold.attach(encoder, anchorfold.AnchorFold(ratio=0.25))
        handle = encoder[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        try:
            with pytest.raises(RuntimeError, match="out of memory"):
                encoder.encode_document(images[:1])
            handle.remove()
            assert len(encoder.encode_document(images[:1])[0]) < len(full[0])
        finally:
            anchorfold.detach(encoder)
        assert torch.equal(encoder.encode_document(images[:1])[0], full[0])


class TestTextEncoder:
    documents = ("net revenue by region", "the table page 1 2 3 a b c d e report", "user query")

    def test_compresses_scored_tokens(self, text_encoder):
        full = text_encoder.encode_document(list(self.documents))
        anchorfold.attach(text_encoder, anchorfold.AnchorFold(ratio=0.5))
        try:
            folded = text_encoder.encode_document(list(self.documents))
        finally:
            anchorfold.detach(text_encoder)
        assert [len(v) for v in folded] == [vector_budget(len(v), ratio=0.5) for v in full]

    def test_as_a_backbone(self, text_encoder):
        model = anchorfold.load(text_encoder)
        assert isinstance(model, MultiVectorBackbone)
        assert len(model.attention_layers) == 4
        pages = model.encode_documents(list(self.documents), batch_size=3)
        for page, expected in zip(pages, text_encoder.encode_document(list(self.documents)), strict=True):
            torch.testing.assert_close(page.vectors, expected, atol=1e-5, rtol=0)
        queries = model.encode_queries(["net revenue"])
        torch.testing.assert_close(queries[0], text_encoder.encode_query(["net revenue"])[0])


def test_loading_a_vision_encoder_object(checkpoints, images):
    model = anchorfold.load(encoder_for(checkpoints["colpali"]))
    pages = model.encode_documents(images, anchorfold.AnchorFold(ratio=0.25))
    assert [len(p) for p in pages] == [4] * 4
    assert pages[0].grid.tiles[0].rows == 4


def test_a_query_is_explained_by_its_words(vision):
    _, encoder = vision
    explained = MultiVectorBackbone(encoder).explain_query("net revenue by region")
    assert list(explained.words) == ["net", "revenue", "by", "region"]
    assert set(explained.labels) - {None} == {0, 1, 2, 3}
    assert len(explained.labels) == len(explained.vectors)
