"""Full-text search in a store: matches, scores, snippets, and readers beside a writer."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anchorfold.errors import AnchorFoldError, DiskFullError
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.checking import check
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import PageText
from anchorfold.storage.text_search import as_snippet
from tests.storage.page_rows import live_pages, make_store, page_row

ROOT = str(Path(__file__).parents[3])


def text_rows(source, *texts):
    return [page_row(p, source=source, pages=len(texts), text=PageText(text)) for p, text in enumerate(texts, 1)]


@pytest.fixture
def store(tmp_path):
    return make_store(
        tmp_path / "my.index",
        text_rows("/1.pdf", "The café's revenue", "", "売上高は 1,775 年"),
        text_rows("/2.pdf", "Nothing of note", "Revenue, and revenue again"),
        text=True,
    )


def matches(store, query, **selection):
    return [(hit.source, hit.page) for hit in store.search_text(SearchRequest([query], top_k=10, **selection))[0]]


class TestStoring:
    def test_texts_are_read_as_they_were_written(self, store):
        assert store.page_text("/1.pdf", 3) == PageText("売上高は 1,775 年")
        assert store.page_text("/1.pdf", 2) == PageText("")
        assert store.page_text("/9.pdf", 1) is None

    def test_pages_for_ocr_are_those_without_text_that_were_not_tried(self, store):
        with store.writing():
            store.enable_text(ocr=True)
            for source in ("/1.pdf", "/2.pdf"):
                store.put_texts(source, "d", {}, dict.fromkeys((1, 2, 3), b"image"))
            assert store.incomplete_pages() == {"/1.pdf": ("d", [2])}
            store.put_texts("/1.pdf", "d", {2: PageText("", ocr=True)})
        assert store.incomplete_pages() == {}

    def test_a_full_disk_changes_nothing(self, store, monkeypatch):
        connect = store.database.connect

        def small(write=False):
            connection = connect(write)
            connection.execute("PRAGMA max_page_count = 1")  # as many as there are
            return connection

        monkeypatch.setattr(store.database, "connect", small)
        with pytest.raises(DiskFullError, match="the disk is full"), store.writing():
            store.append(text_rows("/3.pdf", "x" * 100_000))
        monkeypatch.undo()
        assert check(store.folder) == []
        assert len(live_pages(store)) == 5


class TestMatching:
    @pytest.mark.parametrize(
        ("query", "pages"),
        [
            ("revenue", [("/2.pdf", 2), ("/1.pdf", 1)]),  # more occurrences rank higher
            ("cafe", [("/1.pdf", 1)]),
            ("売上", [("/1.pdf", 3)]),
            ("上売", []),
            ("1,775", [("/1.pdf", 3)]),
            ("775,1", []),
            ('"of note"', [("/2.pdf", 1)]),
            ("AND OR NOT NEAR", []),
            ('"" * ^ : - ( )', []),
        ],
    )
    def test_pages_that_match(self, store, query, pages):
        assert matches(store, query) == pages

    def test_a_selection_restricts_matches(self, store):
        assert matches(store, "revenue", documents="1.pdf") == [("/1.pdf", 1)]
        assert matches(store, "revenue", where="page = 2") == [("/2.pdf", 2)]
        assert matches(store, "revenue", documents="1.pdf", where="document = '2.pdf'") == []
        with pytest.raises(AnchorFoldError, match=r"contains no document that matches 9\.pdf"):
            matches(store, "revenue", documents="9.pdf")

    def test_scores_of_given_pages(self, store):
        keys = [("/1.pdf", 1), ("/1.pdf", 2), ("/2.pdf", 1), ("/2.pdf", 2), ("/9.pdf", 1)]
        scores = store.text_scores("revenue", keys)
        best = {(hit.source, hit.page): hit.score for hit in store.search_text(SearchRequest(["revenue"], top_k=10))[0]}
        assert scores == {**best, ("/1.pdf", 2): None, ("/2.pdf", 1): 0.0}
        assert store.text_scores("?!", keys[:2]) == {keys[0]: 0.0, keys[1]: None}

    def test_snippets_mark_the_words(self, store):
        keys = [("/1.pdf", 1), ("/1.pdf", 3), ("/2.pdf", 1)]
        snippets = store.snippets("revenue 売上", keys)
        marked = {key: [s.text[a:b] for a, b in s.matches] for key, s in snippets.items()}
        assert marked == {keys[0]: ["revenue"], keys[1]: ["売上"]}
        assert store.snippets("?!", keys) == store.snippets("revenue", []) == {}
        assert store.matched_words("revenue", "/2.pdf", 2) == ["Revenue", "revenue"]
        assert store.matched_words("horses", "/2.pdf", 2) == store.matched_words("x", "/9.pdf", 1) == []

    def test_marks_become_positions(self):
        snippet = as_snippet("a \x02b\x03\n\n … \x02c d\x03")
        assert snippet.text == "a b … c d"
        assert [snippet.text[a:b] for a, b in snippet.matches] == ["b", "c d"]

    def test_an_index_without_text_is_an_error_with_advice(self, tmp_path):
        bare = make_store(tmp_path / "bare.index", text_rows("/1.pdf", "ignored"))
        with pytest.raises(AnchorFoldError, match=r"bare\.index stores no text: search it with --mode visual, or add"):
            bare.search_text(SearchRequest(["x"], top_k=1))[0]
        assert bare.matched_words("ignored", "/1.pdf", 1) == []


READER = """
import sys
from pathlib import Path
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.hits import SearchRequest
store = EmbeddedStore.open(Path(sys.argv[1]))
print("ready", flush=True)
request = SearchRequest(["page"], top_k=10_000)
counts = [len(store.search_text(request)[0]) for _ in range(25)]
assert counts == sorted(counts), counts
assert all(count % 8 == 0 for count in counts), counts
"""


def test_readers_see_whole_transactions_while_a_writer_writes(tmp_path):
    store = make_store(tmp_path / "my.index", text=True)
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, store.folder], stdout=subprocess.PIPE, cwd=ROOT)
        for _ in range(2)
    ]
    for reader in readers:
        reader.stdout.readline()
    done = threading.Event()

    def write():
        with store.writing():
            for document in range(200):
                store.append(text_rows(f"/{document}.pdf", *["a page of text"] * 8))
                if done.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert [reader.wait() for reader in readers] == [0, 0]
    finally:
        done.set()
        writer.join()
    assert check(store.folder) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.hits import SearchRequest
store = EmbeddedStore.open(Path(sys.argv[1]))
with store.writing(), store.transaction() as snapshot:
    connection = snapshot.connection
    connection.execute("PRAGMA cache_size = 1")  # so that changed pages reach the disk before the commit
    connection.execute("DELETE FROM texts")
    pages = [(i,) for i in range(1, 99)]
    connection.executemany("INSERT INTO pages (id, vectors, full_vectors) VALUES (?, 1, 1)", pages)
    rows = [(i, "words " * 900) for i in range(1, 99)]
    connection.executemany("INSERT INTO texts VALUES (?, ?, 0, 0)", rows)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_transaction_that_is_killed_is_rolled_back_by_the_next_reader(store, journal, monkeypatch):
    environment = {**os.environ, "ANCHORFOLD_JOURNAL": journal}
    killed = subprocess.run([sys.executable, "-c", KILLED, store.folder], check=False, cwd=ROOT, env=environment)
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.setenv("ANCHORFOLD_JOURNAL", journal)
    assert (store.folder / ("index.db-wal" if journal == "wal" else "index.db-journal")).stat().st_size > 0
    assert matches(EmbeddedStore.open(store.folder), "revenue") == [("/2.pdf", 2), ("/1.pdf", 1)]
    assert check(store.folder) == []
