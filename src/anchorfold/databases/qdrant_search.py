"""Search in Qdrant: candidates by pooled vectors, MaxSim and BM25 in the engine, and whole documents for readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anchorfold.databases.passages import Passages
from anchorfold.databases.qdrant_documents import QdrantDocuments
from anchorfold.databases.qdrant_engine import all_of, matches, models
from anchorfold.databases.qdrant_head import Head
from anchorfold.databases.qdrant_layout import HIT_FIELDS, PAGES, POOLED, of_type, page_version, point_id
from anchorfold.databases.qdrant_records import groups, live_version
from anchorfold.databases.qdrant_text import SPARSE, query_numbers
from anchorfold.errors import AnchorFoldError, StoreError
from anchorfold.filters.values import BUILT_IN
from anchorfold.retrieval.derived import require_text
from anchorfold.storage.hits import Hit, PageKey, SearchRequest, as_names, selector
from anchorfold.storage.info import shown_metadata
from anchorfold.storage.records import Snippet
from anchorfold.storage.schema import public_page_id
from anchorfold.storage.text_search import has_phrase

CANDIDATES = 4_000  # pages that are scored by MaxSim, at least
SCANNED = 200_000  # pages up to which all are scored: one vector per page says little about single words
OVERSAMPLING = {8: 1.0, 4: 2.0, 2: 8.0, 1: 16.0}  # by bits; pages that are rescored with the stored vectors
ATTEMPTS = 50  # to read documents that change all the time
ScoredPoints = list[tuple[Any, float]]  # points and scores


class QdrantSearch(QdrantDocuments):
    """Search of an index. A result contains each document in one version, whatever writers do in the meantime."""

    searched = 1.0  # a server that does not answer is an error

    @property
    def location(self) -> str:
        """The URL without its key."""
        return self.engine.address.location

    # Which pages are searched.

    def columns(self) -> dict[str, str]:
        """Return types of the columns that a filter may use."""
        return {**BUILT_IN, **self.head.read().columns}

    def _selection(self, request: SearchRequest, head: Head) -> list[Any]:
        """Return the conditions of the filters of a request."""
        conditions: list[Any] = []
        if request.documents is not None:
            live, _ = self.live_documents()
            names = {
                record.document_id: (record.public_name, record.public_name)
                if request.public
                else (record.document, source)
                for source, (record, _) in live.items()
            }
            selected = selector(request.documents, names.values())
            ids = [document for document, name in names.items() if selected(*name)]
            if not ids:
                raise AnchorFoldError(
                    f"{self.location} contains no document that matches {', '.join(as_names(request.documents))}."
                )
            conditions.append(matches("document_id", ids))
        if request.where is not None:
            from anchorfold.databases.qdrant_filter import FilterCompiler  # imports sqlglot
            from anchorfold.filters.where import parse_where

            types = {**BUILT_IN, **head.columns}
            compiler = FilterCompiler(types, self._values, request.public)
            conditions.append(compiler.compile(parse_where(request.where, types)))
        return conditions

    def _values(self, path: str, limit: int) -> list[str]:
        return list(self.engine.facet(path, all_of(of_type("page")), limit))

    def _whole(self, count: int, search: Callable[[list[Any], list[Any], Head], ScoredPoints]) -> ScoredPoints:
        """Call a search with conditions that must and must not hold; repeat it for documents that have changed since.

        Raises:
            StoreError: documents changed during all attempts.
        """
        best: ScoredPoints = []
        only: set[int] | None = None
        for _ in range(ATTEMPTS):
            head = self.head.read()
            must = [of_type("page")] + ([] if only is None else [matches("document_id", sorted(only))])
            points = search(must, [matches("version", head.hidden)] if head.hidden else [], head)
            changed = self.head.read().changed_since(head)
            if changed is None:
                best, only = [], None
                continue
            kept = [one for one in points if one[0].payload["document_id"] not in changed]
            best = sorted([*best, *kept], key=_best_first)[:count]
            if not changed:
                return best
            # A document of an earlier result may be among those that have changed now.
            best = [one for one in best if one[0].payload["document_id"] not in changed]
            only = changed | (set() if only is None else only & changed)
        raise StoreError(f"{self.location} changes faster than it can be searched: search again.")

    # Visual search.

    def search_visual(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by MaxSim for each of `request.vectors`."""
        results = []
        for vector in request.vectors:
            query = _tokens(vector, self.settings.dim)

            def search(must: list[Any], must_not: list[Any], head: Head, query: np.ndarray = query) -> ScoredPoints:
                allowed = all_of(*must, *self._selection(request, head), none_of=must_not)
                return self._nearest(query, allowed, request) if len(query) else []

            points = self._whole(request.top_k, search)
            results.append([replace(hit, visual=hit.score) for hit in self._hits(points, request.public)])
        return results

    def _nearest(self, query: np.ndarray, allowed: models.Filter, request: SearchRequest) -> ScoredPoints:
        candidates = request.candidates
        if candidates is None and self.engine.count(all_of(of_type("page"))) > SCANNED:
            candidates = max(CANDIDATES, 4 * request.top_k)
        options: dict[str, Any] = {"query": query.tolist(), "using": PAGES, "limit": request.top_k}
        if request.exact:
            options |= {"query_filter": allowed, "search_params": models.SearchParams(exact=True)}
        elif candidates is None:
            options["query_filter"] = allowed
        else:
            options["prefetch"] = models.Prefetch(
                query=query.sum(0).tolist(), using=POOLED, filter=allowed, limit=max(candidates, request.top_k),
                params=models.SearchParams(exact=True),  # the graph loses most of that many candidates
            )  # fmt: skip
        if not request.exact and self.settings.bits < 16:
            rescored = models.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING[self.settings.bits])
            options["search_params"] = models.SearchParams(quantization=rescored)
        return [(p, p.score) for p in self.engine.call("query_points", with_payload=HIT_FIELDS, **options).points]

    def _hits(self, points: ScoredPoints, public: bool) -> list[Hit]:
        types = self.columns() if points else {}
        hits = []
        for point, score in points:
            version, page = page_version(point.payload), point.payload["page"]
            hits.append(
                Hit(
                    version.name,
                    page,
                    float(score),
                    version.source,
                    metadata=shown_metadata(version, types, public),
                    public_name=version.public_name,
                    page_id=public_page_id(version.document_id, page),
                )
            )
        return hits

    def page_scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """MaxSim scores of some pages."""
        tokens, scores = _tokens(query, self.settings.dim), {}
        if not len(tokens):
            return {}
        exact = models.SearchParams(exact=True)
        for keys in groups(self._point_ids(pages).items()):
            chosen = all_of(models.HasIdCondition(has_id=[identity for identity, _ in keys]))
            points = self.engine.call(
                "query_points", query=tokens.tolist(), using=PAGES, query_filter=chosen, limit=len(keys),
                search_params=exact, with_payload=False,
            ).points  # fmt: skip
            scores.update({str(point.id): float(point.score) for point in points})
        return {key: scores[identity] for identity, key in self._point_ids(pages).items() if identity in scores}

    def _point_ids(self, pages: Sequence[PageKey]) -> dict[str, PageKey]:
        """Return the points of pages of live documents."""
        records, head = self.records([source for source, _ in pages])
        live = {source: live_version(record, head) for source, record in records.items()}
        return {point_id(v.version, page): (source, page) for source, page in pages if (v := live.get(source))}

    # Text search.

    def search_text(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by BM25 for each of `request.texts`."""
        require_text(self)
        return [self._search_words(text, request) for text in request.texts]

    def _search_words(self, text: str, request: SearchRequest) -> list[Hit]:
        passages: dict[str, Snippet] = {}

        def search(must: list[Any], must_not: list[Any], head: Head) -> ScoredPoints:
            allowed = all_of(*must, *self._selection(request, head), none_of=must_not)
            limit = request.top_k
            while True:
                points = self._by_words(text, allowed, limit)
                texts = {str(point.id): point.payload["text"] or "" for point in points}
                passages.update(Passages(text).snippets(texts))
                matching = [(point, point.score) for point in points if str(point.id) in passages]
                if len(matching) >= request.top_k or len(points) < limit:
                    return matching[: request.top_k]
                limit *= 4  # the words occur, but not as the phrase

        best = self._whole(request.top_k, search)
        shown = [passages[str(point.id)] for point, _ in best]
        hits = self._hits(best, request.public)
        return [
            replace(hit, text=hit.score, snippet=passage.text, matches=passage.matches)
            for hit, passage in zip(hits, shown, strict=True)
        ]

    def _by_words(
        self, text: str, allowed: models.Filter, limit: int, payload: Any = (*HIT_FIELDS, "text")
    ) -> list[Any]:
        numbers = query_numbers(text)
        if not numbers:
            return []
        query = models.SparseVector(indices=numbers, values=[1.0] * len(numbers))
        points: list[Any] = self.engine.call(
            "query_points", query=query, using=SPARSE, query_filter=allowed, limit=limit,
            with_payload=payload if payload is False else list(payload),
        ).points  # fmt: skip
        return points

    def text_scores(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, float | None]:
        """Return BM25 scores of some pages: 0 without a match, None without text."""
        scores: dict[PageKey, float | None] = {}
        for group in groups(self._point_ids(pages).items()):
            keys = dict(group)
            stored = {str(p.id): p.payload["text_bytes"] for p in self.engine.retrieve(list(keys), ["text_bytes"])}
            chosen = all_of(models.HasIdCondition(has_id=list(keys)))
            word_scores = {str(p.id): float(p.score) for p in self._by_words(query, chosen, len(keys), False)}
            if has_phrase(query):
                matching = Passages(query).snippets(self._texts(list(word_scores)))
                word_scores = {identity: score for identity, score in word_scores.items() if identity in matching}
            scores |= {keys[i]: word_scores.get(i, 0.0) if size else None for i, size in stored.items()}
        return scores

    def snippets(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, Snippet]:
        """Return passages of some pages that match a query."""
        keys = self._point_ids(pages)
        return {keys[identity]: s for identity, s in Passages(query).snippets(self._texts(list(keys))).items()}

    def matched_words(self, query: str, source: str, page: int) -> list[str]:
        """Return the words of a page that match a query, as they occur on the page."""
        texts = self._texts(list(self._point_ids([(source, page)])))
        return [word for text in texts.values() for word in Passages(query).words(text)]

    def _texts(self, identities: Sequence[str]) -> Mapping[str, str]:
        return {
            str(point.id): point.payload["text"]
            for group in groups(identities)
            for point in self.engine.retrieve(group, ["text"])
            if point.payload.get("text")
        }


def _best_first(scored: tuple[Any, float]) -> tuple[float, str, int]:
    """Return a sort key: ties are in page order."""
    return -scored[1], scored[0].payload["source"], scored[0].payload["page"]


def _tokens(vector: Any, dim: int) -> np.ndarray:
    """Return a query as `(tokens, dim)` float32."""
    return np.asarray(vector, np.float32).reshape(-1, dim)
