"""LangChain retriever that returns pages as documents.

from anchorfold import Index
from anchorfold.integrations.langchain import LangChainRetriever

retriever = LangChainRetriever(index=Index.open("my.index"), top_k=3)
for document in retriever.invoke("net revenue by region"):
    print(document.metadata["document"], document.metadata["page"], document.metadata["score"])
"""

from __future__ import annotations

import asyncio
from typing import Any

from anchorfold.errors import MissingExtraError
from anchorfold.indexes.index import Index
from anchorfold.indexes.locations import Location
from anchorfold.integrations.page_retriever import PageRetriever, RetrievedPage
from anchorfold.storage.hits import Mode

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import Field, PrivateAttr
except ImportError as error:
    raise MissingExtraError("LangChain", "langchain", error) from None


class LangChainRetriever(BaseRetriever):
    """Retrieves pages of an index; fields are the arguments of `PageRetriever`.

    `page_content` of a document is the page's text layer, empty for scans. `metadata` contains `document`, `page` (from
    1), `score`, `source` (a path), the document's columns, and `image`, a JPEG in base64 for vision models.
    """

    index: Index | Location
    top_k: int = Field(5, ge=1)
    documents: str | list[str] | None = None
    where: str | None = None
    mode: Mode | None = None
    text: bool = True
    pixels: int | None = Field(1000, ge=64)
    _pages: PageRetriever = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Create the page retriever from the validated fields."""
        super().model_post_init(context)
        self._pages = PageRetriever(
            self.index, self.top_k, self.documents, self.text, self.pixels, self.where, self.mode
        )
        self.index = self._pages.index

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [_document(page) for page in self._pages.retrieve(query)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [_document(page) for page in await asyncio.to_thread(self._pages.retrieve, query)]


def _document(page: RetrievedPage) -> Document:
    image = {} if page.image is None else {"image": page.image}
    return Document(page.text, id=page.id, metadata={**page.metadata, **image})
