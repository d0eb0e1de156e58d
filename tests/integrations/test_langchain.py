"""LangChain retriever, called through the framework's interface."""

import asyncio
import base64
import io

import pytest
from PIL import Image

pytest.importorskip("langchain_core")
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pydantic import ValidationError

from anchorfold.errors import NotAnIndexError
from anchorfold.integrations.langchain import LangChainRetriever

QUERY = "net revenue by region"


def test_documents_have_text_image_score_and_metadata(report_index):
    first, second = LangChainRetriever(index=report_index, top_k=2, pixels=200).invoke(QUERY)
    assert (first.metadata["document"], first.metadata["page"]) == ("reports/annual.pdf", 2)
    assert first.page_content.strip() == "Net revenue by region"
    assert first.metadata["score"] > second.metadata["score"]
    assert max(Image.open(io.BytesIO(base64.b64decode(first.metadata["image"]))).size) == 200


def test_an_index_by_its_path(report_index):
    retriever = LangChainRetriever(index=str(report_index.path), top_k=1, pixels=None)
    assert retriever.invoke(QUERY)[0].metadata["page"] == 2
    assert retriever.index.location == str(report_index.path)


def test_async_retrieval(report_index):
    retriever = LangChainRetriever(index=report_index, top_k=1, pixels=None)
    (one,), (other,) = retriever.invoke(QUERY), asyncio.run(retriever.ainvoke(QUERY))
    assert one == other
    assert "image" not in one.metadata
    several = asyncio.run(retriever.abatch([QUERY, "letter to shareholders"]))
    assert [documents[0].metadata["page"] for documents in several] == [2, 1]


def test_filters_and_pages_without_text(report_index):
    retriever = LangChainRetriever(index=report_index, documents="*.png", pixels=None)
    (document,) = retriever.invoke(QUERY)
    assert (document.metadata["document"], document.page_content) == ("reports/scan.png", "")
    retriever = LangChainRetriever(index=report_index, where="kind = 'pdf' and page = 1", pixels=None)
    (document,) = retriever.invoke(QUERY)
    assert (document.metadata["page"], document.metadata["pages"], document.metadata["folder"]) == (1, 2, "reports")
    assert isinstance(document.metadata["modified"], str)  # JSON-serialisable


def test_in_a_chain(report_index):
    def join(documents):
        return "\n".join(document.page_content for document in documents)

    retriever = LangChainRetriever(index=report_index, top_k=1, pixels=None)
    prompt = ChatPromptTemplate.from_template("{context}\n\n{question}")
    model = RunnableLambda(lambda messages: messages.to_messages()[0].content.splitlines()[0])
    chain = {"context": retriever | join, "question": RunnablePassthrough()} | prompt | model
    assert chain.invoke(QUERY) == "Net revenue by region"


def test_invalid_fields(report_index):
    with pytest.raises(ValidationError):
        LangChainRetriever(index=report_index, top_k=0)
    with pytest.raises(ValidationError):
        LangChainRetriever(index=5)
    with pytest.raises(NotAnIndexError, match=r"my\.index does not exist"):
        LangChainRetriever(index="my.index")
