"""A LlamaIndex retriever: pages as image nodes, with their text, picture, score and place.

from anchorfold import Index
from anchorfold.integrations.llamaindex import AnchorFoldRetriever

retriever = AnchorFoldRetriever(Index.open("my.index"), top=3)
for node in retriever.retrieve("net revenue by region"):
    print(node.metadata["document"], node.metadata["page"], node.score)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anchorfold.errors import MissingExtraError
from anchorfold.index import Index
from anchorfold.index.hits import Mode
from anchorfold.integrations.pages import PageRetriever, RetrievedPage

try:
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle
except ImportError as error:
    raise MissingExtraError("LlamaIndex", "llamaindex", error) from None


class AnchorFoldRetriever(BaseRetriever):
    """Pages of an index that answer a question.

    A node's `text` is the page's text layer, empty for scans; its `image` a JPEG in base64 for models that see; its
    `metadata` holds `document`, `page` (from 1), `score`, `source` (a path), and what else is known of the document.

    Args:
        index: where.
        top: pages a query.
        documents: only pages of these: names, paths, folders or patterns.
        text: read the pages' text layers.
        pixels: of the longer side of the pages' pictures; None for no pictures.
        callback_manager: LlamaIndex's.
        where: only pages for which this SQL condition on their columns is true.
        mode: visual, text or hybrid, as for `Index.search`.
    """

    def __init__(
        self,
        index: Index,
        top: int = 5,
        documents: str | Sequence[str] | None = None,
        text: bool = True,
        pixels: int | None = 1000,
        callback_manager: CallbackManager | None = None,
        where: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        super().__init__(callback_manager=callback_manager)
        self._pages = PageRetriever(index, top, documents, text, pixels, where, mode)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [as_node(page) for page in self._pages.retrieve(query_bundle.query_str)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        pages = await asyncio.to_thread(self._pages.retrieve, query_bundle.query_str)
        return [as_node(page) for page in pages]


def as_node(page: RetrievedPage) -> NodeWithScore:
    """A page as LlamaIndex knows it."""
    node = ImageNode(
        id_=f"{page.document}#page={page.page}", text=page.text, image=page.image, metadata=page.metadata,
        image_mimetype=None if page.image is None else "image/jpeg",
        excluded_llm_metadata_keys=["score", "source"], excluded_embed_metadata_keys=["score", "source"],
    )  # fmt: skip
    return NodeWithScore(node=node, score=page.score)
