"""A LangChain retriever: pages as documents, with their text, picture, score and place.

from anchorfold import Index
from anchorfold.integrations.langchain import AnchorFoldRetriever

retriever = AnchorFoldRetriever(index=Index.open("my.index"), top=3)
for document in retriever.invoke("net revenue by region"):
    print(document.metadata["document"], document.metadata["page"], document.metadata["score"])
"""

from __future__ import annotations

import asyncio
from typing import Any

from anchorfold.errors import MissingExtraError
from anchorfold.index import Index
from anchorfold.index.hits import Mode
from anchorfold.integrations.pages import PageRetriever, RetrievedPage

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import Field, PrivateAttr
except ImportError as error:
    raise MissingExtraError("LangChain", "langchain", error) from None


class AnchorFoldRetriever(BaseRetriever):
    """Pages of an index that answer a question.

    A document's `page_content` is the page's text layer, empty for scans; its `metadata` holds `document`, `page` (from
    1), `score`, `source` (a path), what else is known of the document by column, and `image`, a JPEG in base64 for
    models that see. `where` is an SQL condition on these columns, `mode` is as for
    `Index.search`.
    """

    index: Index
    top: int = Field(5, ge=1)
    documents: str | list[str] | None = None
    where: str | None = None
    mode: Mode | None = None
    text: bool = True
    pixels: int | None = Field(1000, ge=64)
    _pages: PageRetriever = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Once all fields are there."""
        super().model_post_init(context)
        self._pages = PageRetriever(self.index, self.top, self.documents, self.text, self.pixels, self.where, self.mode)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [as_document(page) for page in self._pages.retrieve(query)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        pages = await asyncio.to_thread(self._pages.retrieve, query)
        return [as_document(page) for page in pages]


def as_document(page: RetrievedPage) -> Document:
    """A page as LangChain knows it."""
    image = {} if page.image is None else {"image": page.image}
    return Document(page.text, id=f"{page.document}#page={page.page}", metadata={**page.metadata, **image})
