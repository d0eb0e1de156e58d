"""LlamaIndex retriever, called through the framework's interface."""

import asyncio
import io

import pytest
from PIL import Image

pytest.importorskip("llama_index.core")
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import ImageNode, MetadataMode

from anchorfold.integrations.llamaindex import LlamaIndexRetriever

QUERY = "net revenue by region"


def test_nodes_have_text_image_score_and_metadata(report_index):
    first, second = LlamaIndexRetriever(report_index, top_k=2, pixels=200).retrieve(QUERY)
    assert isinstance(first.node, ImageNode)
    assert (first.metadata["document"], first.metadata["page"]) == ("reports/annual.pdf", 2)
    assert first.text.strip() == "Net revenue by region"
    assert first.score > second.score
    picture = first.node.resolve_image()
    assert max(Image.open(io.BytesIO(picture.read() if isinstance(picture, io.IOBase) else picture)).size) == 200
    assert "source" not in first.node.get_content(MetadataMode.LLM)


def test_async_retrieval(report_index):
    retriever = LlamaIndexRetriever(report_index, top_k=1, pixels=None)
    (one,), (other,) = retriever.retrieve(QUERY), asyncio.run(retriever.aretrieve(QUERY))
    assert (one.node.id_, one.score) == (other.node.id_, other.score)
    assert one.node.image is None


def test_filters_and_pages_without_text(report_index):
    (node,) = LlamaIndexRetriever(report_index, documents=["reports/scan.png"], pixels=None).retrieve(QUERY)
    assert (node.metadata["document"], node.text) == ("reports/scan.png", "")
    (node,) = LlamaIndexRetriever(report_index, where="kind = 'pdf' and page = 1", pixels=None).retrieve(QUERY)
    assert (node.metadata["page"], node.metadata["pages"], node.metadata["folder"]) == (1, 2, "reports")


def test_in_a_query_engine(report_index):
    retriever = LlamaIndexRetriever(report_index, top_k=1, pixels=None)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    response = engine.query(QUERY)
    assert "Net revenue by region" in str(response)  # the mock model repeats its prompt
    assert response.source_nodes[0].metadata["page"] == 2
