"""Contract tests for implementations of `PageStore`.

from anchorfold.testing.contracts import STORE_SETTINGS, StoreContract

class TestMyStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        MyStore.create(tmp_path / "pages", STORE_SETTINGS)
        return lambda: MyStore(tmp_path / "pages")
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from anchorfold.errors import AnchorFoldError, FilterError, LockedError, StoreError
from anchorfold.filters.values import Plain
from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.storage.hits import Hit, PageKey, SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.protocol import PageCollection, PageStore
from anchorfold.storage.records import PageRow, PageText

DIM = 6
STORE_SETTINGS = IndexSettings("invented", "fingerprint", DIM, "none", {}, bits=32, text=True)
A, B, C, D = "/docs/a.pdf", "/docs/b.pdf", "/other/c.png", "/absolute/d.pdf"
NAMES = {A: "a.pdf", B: "b.pdf", C: "other/c.png", D: D}
DAY = 86_400 * 10**9  # nanoseconds
MODIFIED = 19_800 * DAY  # 2024-03-18
OpenStore = Callable[[], PageStore]


def store_vectors(source: str, page: int, digest: str) -> torch.Tensor:
    """Return deterministic unit vectors `(m, d)` that differ between pages and versions."""
    seed = sum(ord(character) * 31**i for i, character in enumerate(f"{source}{page}{digest}")) % 2**31
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3 + seed % 5, DIM, generator=generator)
    return torch.nn.functional.normalize(vectors, dim=1)


def store_row(
    source: str,
    page: int,
    pages: int,
    text: str | None = None,
    digest: str = "v1",
    live: bool = True,
    readable: bool = True,
    thumbnail: bytes = b"",
) -> PageRow:
    """Return a page for `PageStore.append`."""
    encoded = None
    if readable:
        vectors = store_vectors(source, page, digest)
        tokens = torch.arange(len(vectors))
        grid = PatchGrid.single(1, len(vectors))
        encoded = EncodedPage(vectors, tokens, tokens, torch.ones(len(vectors)), grid)
    return PageRow(
        source, NAMES[source], page, pages, digest, size=100, modified=MODIFIED, live=live, encoded=encoded,
        thumbnail=thumbnail, problem=None if readable else "damaged", text=None if text is None else PageText(text),
    )  # fmt: skip


def brute_force(query: np.ndarray, pages: Sequence[tuple[str, int, str]]) -> dict[PageKey, float]:
    """Return the MaxSim scores of pages, given as path, number and digest."""
    scores = {}
    for source, page, digest in pages:
        products = query @ store_vectors(source, page, digest).numpy().T
        scores[source, page] = float(products.max(1).sum())
    return scores


def page_keys(hits: Sequence[Hit]) -> list[PageKey]:
    """Return the path and number of each hit."""
    return [(hit.source, hit.page) for hit in hits]


QUERY = np.eye(DIM, dtype=np.float32)[:4]


def visual_search(store: PageStore, **options: Any) -> list[Hit]:
    """Return the hits of a visual search for `QUERY`."""
    return store.search_visual(SearchRequest(vectors=[QUERY], **options))[0]


def text_search(store: PageStore, query: str, **options: Any) -> list[Hit]:
    """Return the hits of a text search."""
    return store.search_text(SearchRequest([query], **options))[0]


TEXTS = {(A, 1): "net revenue by region", (A, 2): "staff costs and revenue", (B, 1): "", (C, 1): "minutes of the board"}


class StoreContract:
    """Tests of a page store; override `open_store` to open an empty store with `STORE_SETTINGS`."""

    tolerance: ClassVar[float] = 1e-4  # of MaxSim scores
    many_writers: ClassVar[bool] = False  # whether writers of different documents are admitted at the same time

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Function that returns a new store object for the same location on each call."""
        raise pytest.UsageError("override the fixture `open_store` of StoreContract")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> PageStore:
        """Three documents: two pages, one page without text and one unreadable page, one page of unknown text."""
        store = open_store()
        with store.writing():
            store.append([store_row(A, 1, 2, TEXTS[A, 1]), store_row(A, 2, 2, TEXTS[A, 2], thumbnail=b"image")])
            store.append([store_row(B, 1, 2, ""), store_row(B, 2, 2, readable=False)])
            store.append([store_row(C, 1, 1, TEXTS[C, 1])])
        return store

    # Writing and planning.

    def test_an_empty_store(self, open_store: OpenStore) -> None:
        """Nothing is stored, and every search returns nothing."""
        store = open_store()
        assert store.settings == STORE_SETTINGS
        assert store.location
        assert store.documents() == {}
        assert store.names() == {}
        assert store.stored_pages([A]) == {}
        assert store.search_visual(SearchRequest(vectors=[QUERY, QUERY])) == [[], []]
        assert text_search(store, "revenue") == []
        assert store.page_scores(QUERY, [(A, 1)]) == {}
        assert store.text_scores("revenue", [(A, 1)]) == {}
        assert store.snippets("revenue", [(A, 1)]) == {}
        assert store.read_page(A, 1, lambda page: page) is None
        assert store.info().pages == 0

    def test_append(self, store: PageStore, open_store: OpenStore) -> None:
        """The state of each document, and which pages are stored, also the unreadable one."""
        for reader in (store, open_store()):
            state = reader.documents()[A]
            assert (state.document, state.digest, state.size, state.modified) == ("a.pdf", "v1", 100, MODIFIED)
            assert (state.pages, state.stored, state.complete, state.staged) == (2, 2, True, {})
            assert reader.names() == {path: name for path, name in NAMES.items() if path != D}
            assert reader.stored_pages([A, B, "/docs/none.pdf"]) == {A: {"v1": {1, 2}}, B: {"v1": {1, 2}}}
            info = reader.info()
            assert (info.documents, info.pages, info.unreadable_pages) == (3, 4, 1)

    def test_a_document_may_be_appended_in_several_commits(self, open_store: OpenStore) -> None:
        """It is searchable after each commit, and complete after the last page."""
        store = open_store()
        with store.writing():
            store.append([store_row(A, 2, 2)])
            assert not store.documents()[A].complete
            assert page_keys(visual_search(store)) == [(A, 2)]
            store.append([store_row(A, 1, 2)])
        assert store.documents()[A].complete
        assert store.stored_pages([A]) == {A: {"v1": {1, 2}}}

    def test_a_write_needs_the_writer_lock(self, store: PageStore, open_store: OpenStore) -> None:
        """A second writer waits or gives up; readers do not wait."""
        other = open_store()
        with store.writing():
            with pytest.raises(LockedError), other.writing(wait=0):
                pass
            assert len(visual_search(other)) == 4
        with other.writing(wait=0):
            other.remove([A])
        assert A not in store.documents()

    def test_a_staged_version_is_invisible_until_it_is_promoted(self, store: PageStore, open_store: OpenStore) -> None:
        """Search, text and pages show the old version, then the new one."""
        reader = open_store()
        rows = [store_row(A, page, 3, f"budget {page}", "v2", live=False) for page in (1, 2, 3)]
        with store.writing():
            for count, row in enumerate(rows, 1):
                store.append([row])
                state = reader.documents()[A]
                assert (state.digest, state.pages, state.stored, state.staged) == ("v1", 2, 2, {"v2": count})
                assert reader.stored_pages([A])[A] == {"v1": {1, 2}, "v2": set(range(1, count + 1))}
                scores = {(h.source, h.page): h.score for h in visual_search(reader, documents=A)}
                assert scores == pytest.approx(brute_force(QUERY, [(A, 1, "v1"), (A, 2, "v1")]), abs=self.tolerance)
                assert text_search(reader, "budget") == []
                assert reader.read_page(A, 3, lambda page: page.page) is None
            store.promote(A, "v2", 200, MODIFIED + 1)
        state = reader.documents()[A]
        assert (state.digest, state.size, state.modified, state.pages, state.stored, state.staged) == (
            "v2", 200, MODIFIED + 1, 3, 3, {},
        )  # fmt: skip
        assert reader.stored_pages([A]) == {A: {"v2": {1, 2, 3}}}
        scores = {(h.source, h.page): h.score for h in visual_search(reader, documents=A)}
        assert scores == pytest.approx(brute_force(QUERY, [(A, n, "v2") for n in (1, 2, 3)]), abs=self.tolerance)
        assert sorted(page_keys(text_search(reader, "budget"))) == [(A, 1), (A, 2), (A, 3)]
        assert text_search(reader, "revenue") == []

    def test_replacing_a_document_is_atomic_for_readers(self, store: PageStore, open_store: OpenStore) -> None:
        """A concurrent search returns all pages of one version, and none of another."""
        versions = [f"v{number}" for number in range(1, 9)]
        expected = {
            digest: tuple(sorted(brute_force(QUERY, [(A, 1, digest), (A, 2, digest)]).values())) for digest in versions
        }
        done, seen, problems = threading.Event(), set[str](), list[object]()

        def read() -> None:
            reader = open_store()
            while not done.is_set():
                scores = tuple(sorted(hit.score for hit in visual_search(reader, documents=A)))
                matching = [d for d, e in expected.items() if scores == pytest.approx(e, abs=self.tolerance)]
                seen.update(matching)
                if len(matching) != 1:
                    problems.append(scores)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            with store.writing():
                for digest in versions[1:]:
                    store.append([store_row(A, page, 2, "again", digest, live=False) for page in (1, 2)])
                    store.promote(A, digest, 100, MODIFIED)
        finally:
            done.set()
            thread.join()
        assert problems == []
        assert seen

    def test_touch(self, store: PageStore) -> None:
        """The size and modification time change; the pages do not."""
        with store.writing():
            store.touch(A, 7, 8)
        state = store.documents()[A]
        assert (state.digest, state.size, state.modified, state.stored) == ("v1", 7, 8, 2)

    def test_move(self, store: PageStore, open_store: OpenStore) -> None:
        """The path changes; pages, text and metadata stay."""
        with store.writing():
            store.set_metadata({A: {"year": 2024}}, {"year": "integer"})
            store.move({A: "/new/a.pdf", "/docs/none.pdf": "/new/none.pdf"})
        for reader in (store, open_store()):
            assert sorted(reader.names()) == sorted([B, C, "/new/a.pdf"])
            assert reader.stored_pages([A, "/new/a.pdf"]) == {"/new/a.pdf": {"v1": {1, 2}}}
            hits = visual_search(reader, where="year = 2024")
            assert sorted(page_keys(hits)) == [("/new/a.pdf", 1), ("/new/a.pdf", 2)]
            assert page_keys(text_search(reader, "region")) == [("/new/a.pdf", 1)]

    def test_remove(self, store: PageStore, open_store: OpenStore) -> None:
        """Live and staged versions are deleted; an unknown path is no error."""
        with store.writing():
            store.append([store_row(A, 1, 1, "staged", "v2", live=False)])
            store.remove([A, "/docs/none.pdf"])
        for reader in (store, open_store()):
            assert sorted(reader.documents()) == [B, C]
            assert reader.stored_pages([A]) == {}
            assert sorted(page_keys(visual_search(reader))) == [(B, 1), (C, 1)]
            assert text_search(reader, "revenue") == []
            assert reader.read_page(A, 1, lambda page: page.page) is None
            assert reader.page_text(A, 1) is None
        with store.writing():
            store.append([store_row(A, 1, 1, "back")])
        assert page_keys(text_search(store, "back")) == [(A, 1)]

    def test_drop_staged(self, open_store: OpenStore) -> None:
        """The live version stays; a document that was only staged is deleted."""
        store = open_store()
        with store.writing():
            store.append([store_row(A, 1, 1), store_row(A, 1, 1, digest="v2", live=False)])
            store.append([store_row(B, 1, 1, live=False)])
            assert store.names() == {A: "a.pdf"}
            assert store.documents()[B].staged == {"v1": 1}
            store.drop_staged([A, B])
        assert store.documents().keys() == {A}
        assert store.documents()[A].staged == {}
        assert store.stored_pages([A, B]) == {A: {"v1": {1}}}

    def test_finish_changes_nothing_that_is_stored(self, store: PageStore, open_store: OpenStore) -> None:
        """Maintenance does not change the content, even after documents were replaced and removed."""
        with store.writing():
            for number in range(2, 12):
                store.append([store_row(A, 1, 1, "again", f"v{number}", live=False)])
                store.promote(A, f"v{number}", 100, MODIFIED)
            store.remove([B])
            before = visual_search(store), text_search(store, "again"), store.documents()
            store.finish()
        for reader in (store, open_store()):
            assert (visual_search(reader), text_search(reader, "again"), reader.documents()) == before

    def test_the_version_changes_with_every_commit(self, store: PageStore, open_store: OpenStore) -> None:
        """All store objects return the same version."""
        reader, versions = open_store(), [store.version]
        changes: list[Callable[[], object]] = [
            lambda: store.append([store_row(A, 1, 1, "new", "v2", live=False)]),
            lambda: store.promote(A, "v2", 100, MODIFIED),
            lambda: store.touch(A, 1, 2),
            lambda: store.move({A: "/new/a.pdf"}),
            lambda: store.set_metadata({B: {"year": 2024}}, {"year": "integer"}),
            lambda: store.set_metadata({B: {"year": None}}, {}),
            lambda: store.put_texts(B, "v1", {1: PageText("read by OCR", ocr=True)}),
            lambda: store.enable_text(ocr=True),
            lambda: store.append([store_row(C, 1, 1, digest="v2", live=False)]),
            lambda: store.drop_staged([C]),
            lambda: store.remove([B]),
        ]
        with store.writing():
            for change in changes:
                change()
                assert store.version == reader.version == reader.refresh()
                versions.append(store.version)
        assert len(set(versions)) == len(versions)
        assert reader.settings.ocr

    def test_two_writers_alternate(self, open_store: OpenStore) -> None:
        """Each sees the commits of the other, and continues from them."""
        writers = [open_store(), open_store()]
        for number in range(1, 7):
            writer, other = writers[number % 2], writers[1 - number % 2]
            with writer.writing():
                assert writer.stored_pages([A]).get(A, {}).get("v1", set()) == set(range(1, number))
                writer.append([store_row(A, number, 6, f"text {number}")])
                writer.set_metadata({A: {f"column{number}": number}}, {f"column{number}": "integer"})
            assert other.documents()[A].stored == number
            assert len(visual_search(other)) == number
            assert len(text_search(other, "text")) == number
            assert f"column{number}" in other.columns()
        (hit, *_) = visual_search(writers[0], top_k=1)
        assert {f"column{number}": number for number in range(1, 7)}.items() <= hit.metadata.items()

    # Metadata.

    def test_set_metadata(self, store: PageStore, open_store: OpenStore) -> None:
        """Values by document and column; the number of documents that changed."""
        types = {"year": "integer", "team": "text", "signed": "boolean", "due": "date", "share": "float"}
        values: dict[str, Plain] = {"year": 2024, "team": "sales", "signed": True, "due": "2024-05-01", "share": 0.5}
        with store.writing():
            assert store.set_metadata({A: values, B: {"year": 2023}, "/docs/none.pdf": {"year": 1}}, types) == 2
            assert store.set_metadata({A: {"year": 2024}, B: {"year": 2022}}, {"year": "integer"}) == 1
        for reader in (store, open_store()):
            assert types.items() <= reader.columns().items()
            (hit, *_) = visual_search(reader, top_k=1, documents=A)
            assert {**values, "due": date(2024, 5, 1)}.items() <= hit.metadata.items()
            facets = {facet.column: facet for facet in reader.facets()}
            assert facets["year"].values == {2022: 1, 2024: 1}
            assert facets["year"].missing == 1

    def test_none_removes_a_value(self, store: PageStore) -> None:
        """A column is removed with its last value."""
        with store.writing():
            store.set_metadata({A: {"year": 2024, "team": "sales"}, B: {"year": 2023}}, {"year": "integer", "team": "text"})  # fmt: skip  # noqa: E501
            assert store.set_metadata({A: {"year": None, "team": None}, C: {"year": None}}, {}) == 1
            assert "year" in store.columns()
            assert "team" not in store.columns()
            assert store.set_metadata({B: {"year": None}}, {}) == 1
        assert "year" not in store.columns()
        assert all("year" not in hit.metadata for hit in visual_search(store))
        with pytest.raises(FilterError):
            visual_search(store, where="year = 2024")

    def test_metadata_survives_a_new_version(self, store: PageStore) -> None:
        """Metadata belongs to the document, not to its version."""
        with store.writing():
            store.set_metadata({A: {"year": 2024}}, {"year": "integer"})
            store.append([store_row(A, 1, 1, "new", "v2", live=False)])
            store.promote(A, "v2", 100, MODIFIED)
        (hit,) = visual_search(store, where="year = 2024")
        assert (hit.source, hit.page, hit.metadata["year"]) == (A, 1, 2024)

    # Searching.

    def test_search_equals_brute_force(self, open_store: OpenStore) -> None:
        """Scores and order of many pages, for several queries at once."""
        store = open_store()
        pages = [(A, number, "v1") for number in range(1, 41)]
        with store.writing():
            for first in range(0, 40, 7):
                store.append([store_row(A, number, 40) for _, number, _ in pages[first : first + 7]])
        generator = np.random.default_rng(0)
        queries = [generator.standard_normal((tokens, DIM)).astype(np.float32) for tokens in (1, 3, 8)]
        for exact in (False, True):
            rankings = store.search_visual(SearchRequest(vectors=queries, top_k=15, exact=exact))
            for query, hits in zip(queries, rankings, strict=True):
                expected = brute_force(query, pages)
                assert [hit.score for hit in hits] == pytest.approx(
                    sorted(expected.values(), reverse=True)[:15], abs=10 * self.tolerance
                )
                assert len({(hit.source, hit.page) for hit in hits}) == 15
                for hit in hits:
                    assert (
                        hit.score
                        == hit.visual
                        == pytest.approx(expected[hit.source, hit.page], abs=10 * self.tolerance)
                    )
        assert len(store.search_visual(SearchRequest(vectors=[torch.from_numpy(queries[0])], top_k=100))[0]) == 40

    def test_hits_describe_their_pages(self, store: PageStore) -> None:
        """Name, path, and identifiers for clients of a server that are unique."""
        hits = visual_search(store)
        assert {(hit.source, hit.document) for hit in hits} == {(path, NAMES[path]) for path in (A, B, C)}
        assert len({hit.page_id for hit in hits}) == len(hits)
        assert len({hit.public_name for hit in hits}) == 3
        for hit in hits:
            assert hit.page_id in [
                other.page_id for other in visual_search(store, documents=hit.public_name, public=True)
            ]

    def test_page_scores(self, store: PageStore) -> None:
        """The scores of a search; pages that do not exist, or have no vectors, are left out."""
        scores = {(hit.source, hit.page): hit.score for hit in visual_search(store)}
        pages = [(A, 2), (B, 1), (B, 2), (A, 3), ("/docs/none.pdf", 1)]
        assert store.page_scores(QUERY, pages) == pytest.approx(
            {key: scores[key] for key in ((A, 2), (B, 1))}, abs=self.tolerance
        )

    def test_search_text(self, store: PageStore) -> None:
        """BM25: matching pages only, best first, with a snippet."""
        hits = text_search(store, "revenue region")
        assert page_keys(hits) == [(A, 1), (A, 2)]
        assert hits[0].score > hits[1].score > 0
        assert hits[0].score == hits[0].text
        assert page_keys(text_search(store, "revenue region", top_k=1)) == [(A, 1)]
        assert [hits[0].snippet[first:last] for first, last in hits[0].matches] == ["revenue", "region"]
        assert text_search(store, "") == text_search(store, "?!") == text_search(store, "absent") == []

    def test_text_scores(self, store: PageStore) -> None:
        """0 without a match, None without text; pages that do not exist are left out."""
        (best,) = text_search(store, "board")
        scores = store.text_scores("board", [(A, 1), (B, 1), (C, 1), ("/docs/none.pdf", 1)])
        assert scores == {(A, 1): 0.0, (B, 1): None, (C, 1): pytest.approx(best.score)}
        assert store.text_scores("?!", [(A, 1), (B, 1)]) == {(A, 1): 0.0, (B, 1): None}

    def test_snippets(self, store: PageStore) -> None:
        """Only matching pages have snippets."""
        found = store.snippets("costs", [(A, 1), (A, 2), (B, 1), ("/docs/none.pdf", 1)])
        assert found.keys() == {(A, 2)}
        snippet = found[A, 2]
        assert [snippet.text[first:last] for first, last in snippet.matches] == ["costs"]
        assert store.snippets("?!", [(A, 1)]) == {}

    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            ("year = 2024", [(A, 1), (A, 2)]),
            ("year < 2024", [(B, 1)]),
            ("year is null", [(C, 1)]),
            ("not (year = 2024)", [(B, 1)]),
            ("team in ('sales', 'board')", [(A, 1), (A, 2), (C, 1)]),
            ("team like 'b%'", [(C, 1)]),
            ("page = 2", [(A, 2)]),
            ("page = 1 and year >= 2023", [(A, 1), (B, 1)]),
            ("page = 2 or team = 'board'", [(A, 2), (C, 1)]),
            ("document = 'a.pdf'", [(A, 1), (A, 2)]),
            ("folder = 'other'", [(C, 1)]),
            ("kind = 'pdf' and pages = 2", [(A, 1), (A, 2), (B, 1)]),
            ("modified >= '2024-03-18'", [(A, 1), (A, 2), (B, 1), (C, 1)]),
            ("year = 1", []),
            ('"odd ""name""" = 1', [(B, 1)]),
        ],
    )
    def test_filters(self, store: PageStore, where: str, expected: list[PageKey]) -> None:
        """On metadata and on built-in columns, for both kinds of search."""
        with store.writing():
            store.set_metadata(
                {A: {"year": 2024, "team": "sales"}, B: {"year": 2023, 'odd "name"': 1}, C: {"team": "board"}},
                {"year": "integer", "team": "text", 'odd "name"': "integer"},
            )
            store.put_texts(B, "v1", {1: PageText("common word")})
            store.put_texts(C, "v1", {1: PageText("common board")})
            store.put_texts(A, "v1", {1: PageText("common"), 2: PageText("common costs")})
        assert sorted(page_keys(visual_search(store, where=where))) == expected
        assert sorted(page_keys(text_search(store, "common", where=where))) == expected

    def test_selections_that_are_wrong(self, store: PageStore) -> None:
        """An unknown column, a wrong type, a document that does not exist."""
        for where in ("unknown = 1", "page = 'x'", "page = ", "page = 1; drop table pages", "document = '\ud800'"):
            with pytest.raises(FilterError):
                visual_search(store, where=where)
            with pytest.raises(FilterError):
                text_search(store, "revenue", where=where)
        with pytest.raises(AnchorFoldError, match=r"none\.pdf"):
            visual_search(store, documents="none.pdf")
        with pytest.raises(AnchorFoldError, match=r"none\.pdf"):
            text_search(store, "revenue", documents="none.pdf")

    @pytest.mark.parametrize(
        ("documents", "expected"),
        [
            ("a.pdf", [A]),
            (A, [A]),
            (["a.pdf", C], [A, C]),
            ("*.pdf", [A, B]),
            ("/docs", [A, B]),
            ("other", [C]),
        ],
    )
    def test_documents(self, store: PageStore, documents: str | list[str], expected: list[str]) -> None:
        """Selected by name, path, folder or pattern."""
        assert sorted({hit.source for hit in visual_search(store, documents=documents)}) == expected
        with store.writing():
            for source in (A, B, C):
                store.put_texts(source, "v1", {1: PageText("common word")})
        assert sorted({hit.source for hit in text_search(store, "common", documents=documents)}) == expected

    # Pages.

    def test_read_page(self, store: PageStore) -> None:
        """Vectors, thumbnail and details of a page; an unreadable page has its problem."""
        encoded = store.read_page(A, 2, lambda page: page.encoded())
        assert encoded is not None
        torch.testing.assert_close(encoded.vectors, store_vectors(A, 2, "v1"), atol=self.tolerance, rtol=0)
        details = store.read_page(A, 2, lambda page: page.details())
        assert details is not None
        expected = {"source": A, "document": "a.pdf", "page": 2, "pages": 2, "digest": "v1", "size": 100,
                    "modified": MODIFIED, "thumbnail": b"image", "problem": None}  # fmt: skip
        assert expected.items() <= details.items()
        unreadable = store.read_page(B, 2, lambda page: page.details())
        assert unreadable is not None
        assert (unreadable["problem"], unreadable["kept"]) == ("damaged", 0)
        assert store.read_page(A, 3, lambda page: page) is None
        assert store.read_page("/docs/none.pdf", 1, lambda page: page) is None

    def test_page_text(self, store: PageStore) -> None:
        """The text is returned as stored; None if it is unknown."""
        assert store.page_text(A, 1) == PageText(TEXTS[A, 1])
        assert store.page_text(B, 1) == PageText("")
        assert store.page_text(B, 2) is None
        assert store.page_text("/docs/none.pdf", 1) is None

    def test_put_texts(self, store: PageStore) -> None:
        """Texts and thumbnails of a live version replace those that are stored; another version is ignored."""
        with store.writing():
            store.put_texts(A, "v1", {1: PageText("minutes", ocr=True)}, {1: b"small"})
            store.put_texts(A, "v9", {1: PageText("wrong version")})
        assert store.page_text(A, 1) == PageText("minutes", ocr=True)
        assert page_keys(text_search(store, "minutes", documents=A)) == [(A, 1)]
        assert page_keys(text_search(store, "revenue")) == [(A, 2)]
        assert text_search(store, "wrong") == []
        assert store.read_page(A, 1, lambda page: page.details()["thumbnail"]) == b"small"

    # What clients of a server, exporters and text extraction read.

    def test_public_names_and_page_ids(self, store: PageStore, open_store: OpenStore) -> None:
        """An id leads to its page and back, and survives a new version and another path."""
        with store.writing():
            store.append([store_row(D, 1, 1, "minutes")])  # whose name is an absolute path
        public = store.names(public=True)
        assert public == {A: "a.pdf", B: "b.pdf", C: "other/c.png", D: "d.pdf"}
        assert list(store.public_documents().items()) == [("a.pdf", 2), ("b.pdf", 1), ("d.pdf", 1), ("other/c.png", 1)]
        for hit in visual_search(store):
            assert hit.public_name == public[hit.source]
            assert store.find_page(hit.page_id) == (hit.source, hit.public_name, hit.page)
            assert store.public_page_id(hit.public_name, hit.page) == hit.page_id
        identity = store.public_page_id("a.pdf", 1)
        assert identity is not None
        with store.writing():
            store.append([store_row(A, 1, 1, "new", "v2", live=False)])
            store.promote(A, "v2", 100, MODIFIED)
            store.move({A: "/new/a.pdf"})
        assert open_store().find_page(identity) == ("/new/a.pdf", "a.pdf", 1)
        with store.writing():
            store.remove(["/new/a.pdf"])
        assert store.find_page(identity) is None

    def test_pages_that_do_not_exist_have_no_id(self, store: PageStore) -> None:
        """Whatever a client sends, also an unreadable page."""
        unreadable = store.public_page_id("b.pdf", 2)
        assert unreadable is not None
        for identity in (unreadable, "", "-", "x-1", "1-x", "99999999-1", f"{2**70}-1", "1-" + "9" * 30, "\ud800-1"):
            assert store.find_page(identity) is None
        for name in ("none.pdf", "", A, "a\x00.pdf", "\ud800"):
            assert store.public_page_id(name, 1) is None

    def test_export_pages(self, store: PageStore) -> None:
        """All live pages with vectors, in the same order on each call, with their parts."""
        with store.writing():
            store.set_metadata({A: {"year": 2024}}, {"year": "integer"})
            store.append([store_row(A, 1, 1, "staged", "v2", live=False)])

        def read(index: PageCollection) -> dict[PageKey, dict[str, object]]:
            assert index.settings == store.settings
            assert index.location
            assert [(p.source, p.page) for p in index.pages()] == [(p.source, p.page) for p in index.pages()]
            pages = {}
            for page in index.pages():
                expected = store_vectors(page.source, page.page, "v1").numpy()
                np.testing.assert_allclose(page.vectors, expected, atol=self.tolerance)
                assert page.kept == page.full == len(expected)
                assert page.provenance["anchors"].tolist() == list(range(len(expected)))
                pages[page.source, page.page] = {**page.details(), "text": page.text, "metadata": page.metadata}
                assert store.find_page(page.public_id) is not None
            return pages

        pages = store.export_pages(read)
        assert sorted(pages) == [(A, 1), (A, 2), (B, 1), (C, 1)]
        expected = {"document": "a.pdf", "pages": 2, "digest": "v1", "thumbnail": b"image", "text": TEXTS[A, 2], "metadata": {"year": 2024}}  # fmt: skip  # noqa: E501
        assert expected.items() <= pages[A, 2].items()

    def test_incomplete_pages(self, store: PageStore, open_store: OpenStore) -> None:
        """Readable pages without text or thumbnail, from `enable_text` to `set_text_complete`."""
        assert store.incomplete_pages() == {}
        with store.writing():
            store.enable_text(ocr=False)
            store.put_texts(A, "v1", {}, {1: b"image"})
            store.append([store_row(C, 1, 1, digest="v2", live=False)])
        assert store.incomplete_pages() == {B: ("v1", [1]), C: ("v1", [1])}
        with store.writing():
            store.enable_text(ocr=True)
            store.put_texts(C, "v1", {1: PageText("by OCR", ocr=True)}, {1: b"image"})
            store.put_texts(B, "v1", {}, {1: b"image"})
        assert open_store().incomplete_pages() == {B: ("v1", [1])}  # its text is empty and was not read by OCR
        with store.writing():
            store.set_text_complete()
            assert store.incomplete_pages() == {}
            store.append([store_row(A, 1, 1, None, "v2", live=False)])
            store.promote(A, "v2", 100, MODIFIED)
        assert store.incomplete_pages()[A] == ("v2", [1])

    def test_documents_with_a_column(self, store: PageStore) -> None:
        """Paths of the documents that have a value."""
        with store.writing():
            store.set_metadata({A: {"year": 2024}, B: {"year": 2023, "team": "x"}}, {"year": "integer", "team": "text"})
        assert store.documents_with("year") == {A, B}
        assert store.documents_with("team") == {B}
        assert store.documents_with("none") == store.documents_with('"') == set()

    def test_matched_words(self, store: PageStore) -> None:
        """As they occur on the page, once each."""
        with store.writing():
            store.put_texts(A, "v1", {1: PageText("Net Revenue and revenue")})
        assert sorted(map(str.lower, store.matched_words("revenue net", A, 1))) == ["net", "revenue", "revenue"]
        assert store.matched_words("absent", A, 1) == store.matched_words("?!", A, 1) == []
        assert store.matched_words("revenue", "/docs/none.pdf", 1) == []

    def test_a_phrase_in_quotes(self, store: PageStore) -> None:
        """Its words must be next to each other."""
        assert page_keys(text_search(store, '"net revenue"')) == [(A, 1)]
        assert text_search(store, '"revenue net"') == []
        assert page_keys(text_search(store, '"staff costs" revenue')) == [(A, 2)]

    def test_check_finds_nothing(self, store: PageStore) -> None:
        """An intact index has no problems, also with a staged version."""
        with store.writing():
            store.append([store_row(A, 1, 1, "staged", "v2", live=False)])
        assert store.check() == []

    def test_a_writer_of_some_documents(self, store: PageStore, open_store: OpenStore) -> None:
        """It excludes writers of the same documents and writers of all; others may be admitted."""
        other = open_store()
        with store.writing(sources=[A, C]):
            with pytest.raises(LockedError), other.writing(wait=0):
                pass
            with pytest.raises(LockedError), other.writing(wait=0, sources=[B, C]):
                pass
            store.append([store_row(A, 1, 1, "new", "v2", live=False)])
            if self.many_writers:
                with other.writing(wait=0, sources=[B]):
                    other.remove([B])
        with other.writing(wait=0), pytest.raises(LockedError), store.writing(wait=0, sources=[A]):
            pass
        assert (B in store.documents()) != self.many_writers
        assert store.documents()[A].staged == {"v2": 1}

    def test_delete(self, store: PageStore, open_store: OpenStore) -> None:
        """The index and its content are gone."""
        with store.writing():
            store.delete()
        with pytest.raises(StoreError):
            store.refresh()
