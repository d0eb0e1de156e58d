"""LlamaIndex retriever that returns pages as image nodes.

from anchorfold import Index
from anchorfold.integrations.llamaindex import LlamaIndexRetriever

retriever = LlamaIndexRetriever(Index.open("my.index"), top_k=3)
for node in retriever.retrieve("net revenue by region"):
    print(node.metadata["document"], node.metadata["page"], node.score)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anchorfold.errors import MissingExtraError
from anchorfold.indexes.index import Index
from anchorfold.indexes.locations import Location
from anchorfold.integrations.page_retriever import PageRetriever, RetrievedPage
from anchorfold.storage.hits import Mode

try:
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle
except ImportError as error:
    raise MissingExtraError("LlamaIndex", "llamaindex", error) from None


class LlamaIndexRetriever(BaseRetriever):
    """Retrieves pages of an index.

    `text` of a node is the page's text layer, empty for scans; `image` is a JPEG in base64 for vision models;
    `metadata` contains `document`, `page` (from 1), `score`, `source` (a path), and the document's columns.

    Args:
        index: index to search, or its path or URL.
        top_k: maximum pages per query.
        documents: restrict to these names, paths, folders or patterns.
        text: whether to extract text layers.
        pixels: longer side of page images in pixels; None for no images.
        where: SQL filter on columns.
        mode: visual, text or hybrid, as in `Index.search`.
        callback_manager: callback manager of LlamaIndex.
    """

    def __init__(
        self, index: Index | Location, top_k: int = 5, documents: str | Sequence[str] | None = None, text: bool = True,
        pixels: int | None = 1000, where: str | None = None, mode: Mode | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:  # fmt: skip
        super().__init__(callback_manager=callback_manager)
        self._pages = PageRetriever(index, top_k, documents, text, pixels, where, mode)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [_node(page) for page in self._pages.retrieve(query_bundle.query_str)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [_node(page) for page in await asyncio.to_thread(self._pages.retrieve, query_bundle.query_str)]


def _node(page: RetrievedPage) -> NodeWithScore:
    node = ImageNode(
        id_=page.id, text=page.text, image=page.image, metadata=page.metadata,
        image_mimetype=None if page.image is None else "image/jpeg",
        excluded_llm_metadata_keys=["score", "source"], excluded_embed_metadata_keys=["score", "source"],
    )  # fmt: skip
    return NodeWithScore(node=node, score=page.score)
