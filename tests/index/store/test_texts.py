"""The texts of pages: stored, matched, checked, mended; one flipped bit is never a traceback."""

import os
import random
import sqlite3
import subprocess
import sys
import threading

import pytest

from anchorfold.errors import AnchorFoldError, DiskFullError, StoreError
from anchorfold.index.store import texts as module
from anchorfold.index.store.texts import PAGE_BITS, PageText, PageTexts, row_number
from anchorfold.index.words import expression_of


def numbered(document, *pages):
    return {row_number(document, i + 1): PageText(text) for i, text in enumerate(pages)}


@pytest.fixture
def texts(tmp_path):
    texts = PageTexts(tmp_path)
    texts.put(numbered(1, "The café's revenues", "", "売上高は 1,775 年"), 1)
    texts.put(numbered(2, "Nothing of note", "Revenue, and revenue again"), 2)
    return texts


def found(texts, query):
    rows, scores = texts.scores(expression_of(query))
    return [(n >> PAGE_BITS, n & 0xFFFF) for _, n in sorted(zip(-scores, rows.tolist(), strict=True))]


class TestStoring:
    def test_texts_come_back_as_they_were(self, texts):
        assert texts.text(row_number(1, 3)) == PageText("売上高は 1,775 年")
        assert texts.text(row_number(1, 2)) == PageText("")
        assert texts.text(row_number(9, 1)) is None
        assert len(texts.numbers()) == 5
        assert len(texts.numbers(ocr=True)) == 4  # OCR was not tried on the empty one
        assert texts.problem() is None

    def test_a_later_text_takes_the_place(self, texts):
        texts.put({row_number(2, 1): PageText("revenue", ocr=True)})
        assert texts.text(row_number(2, 1)) == PageText("revenue", ocr=True)
        assert found(texts, "note") == []
        assert texts.problem() is None

    def test_rows_of_numbers_that_were_never_given_out_go_with_the_next_batch(self, texts):
        texts.put(numbered(3, "of a writer", "that died"), 3)
        texts.put(numbered(3, "of another document"), 3)
        assert texts.text(row_number(3, 2)) is None
        assert found(texts, "died") == []
        assert found(texts, "document") == [(3, 1)]

    def test_documents_that_are_not_known_go_and_give_their_room_back(self, texts):
        texts.put(numbered(7, *(f"page {i} " + "many words " * 300 for i in range(60))), 7)
        before = texts.bytes
        texts.tidy({2, 5})
        assert {n >> PAGE_BITS for n in texts.numbers().tolist()} == {2}
        assert texts.bytes < before / 2
        assert found(texts, "revenue many") == [(2, 2)]
        assert texts.problem() is None

    def test_a_full_disk_takes_nothing_away(self, texts, monkeypatch):
        connect = module._connect

        def small(path, mode="rw"):
            file = connect(path, mode)
            file.execute("PRAGMA max_page_count = 1")  # as many as it has
            return file

        monkeypatch.setattr(module, "_connect", small)
        with pytest.raises(DiskFullError, match="the disk is full"):
            texts.put(numbered(3, "x" * 100_000), 3)
        monkeypatch.undo()
        assert texts.problem() is None
        assert len(texts.numbers()) == 5

    def test_a_folder_that_cannot_be_written_is_read(self, texts):
        address = f"{texts.path.as_uri()}?mode=ro&immutable=1"
        with pytest.MonkeyPatch.context() as patch:  # root may write everywhere: SQLite is told not to
            patch.setattr(module, "_connect", lambda *_: sqlite3.connect(address, uri=True, isolation_level=None))
            assert found(texts, "café") == [(1, 1)]
            with pytest.raises(StoreError, match="permission"):
                texts.put(numbered(3, "more"), 3)


class TestMatching:
    @pytest.mark.parametrize(
        ("query", "pages"),
        [
            ("revenue", [(2, 2), (1, 1)]),  # by its stem, and more of it first
            ("cafe", [(1, 1)]),
            ("売上", [(1, 3)]),
            ("上売", []),
            ("1,775", [(1, 3)]),
            ("775,1", []),
            ('"of note"', [(2, 1)]),
            ("AND OR NOT NEAR", [(2, 2)]),
        ],
    )
    def test_pages_that_say_it(self, texts, query, pages):
        assert found(texts, query) == pages

    def test_snippets_show_the_words(self, texts):
        both = [row_number(1, 1), row_number(1, 3), row_number(2, 1)]
        snippets = texts.snippets(expression_of("revenue 売上"), both)
        assert list(snippets) == both[:2]
        marked = {n: [s.text[a:b] for a, b in s.matches] for n, s in snippets.items()}
        assert marked == {both[0]: ["revenues"], both[1]: ["売上"]}
        assert texts.matched_words(expression_of("revenue"), row_number(2, 2)) == ["Revenue", "revenue"]

    def test_what_says_something(self, texts):
        asked = [row_number(1, 1), row_number(1, 2), row_number(8, 1)]
        assert texts.that_say_something(asked) == asked[:1]


READER = """
import sys
from pathlib import Path
from anchorfold.index.store.texts import PageTexts
texts = PageTexts(Path(sys.argv[1]))
print("ready", flush=True)
counts = [len(texts.scores('"page"')[0]) for _ in range(25)]
assert counts == sorted(counts), counts
assert all(count % 8 == 0 for count in counts), counts
print(counts[-1])
"""


def test_readers_see_whole_transactions_while_a_writer_writes(tmp_path):
    texts = PageTexts(tmp_path)
    texts.create()
    readers = [subprocess.Popen([sys.executable, "-c", READER, tmp_path], stdout=subprocess.PIPE) for _ in range(2)]
    for reader in readers:
        reader.stdout.readline()
    done = threading.Event()

    def write():
        for document in range(1, 500):
            texts.put(numbered(document, *["a page of text"] * 8), document)
            if done.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert [reader.wait() for reader in readers] == [0, 0]
    finally:
        done.set()
        writer.join()
    assert texts.problem() is None


KILLED = """
import os, signal, sys
from pathlib import Path
from anchorfold.index.store import texts as module
store = module.PageTexts(Path(sys.argv[1]))
with store._transaction() as file:
    file.execute("PRAGMA cache_size = 1")  # so that changed pages reach the file before the commit
    file.execute("DELETE FROM pages")
    file.executemany("INSERT INTO pages VALUES (?, ?, 0, 0)", [(i, "words " * 900) for i in range(1, 99)])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_transaction_that_is_killed_is_taken_back_by_whoever_reads_next(texts):
    assert subprocess.run([sys.executable, "-c", KILLED, texts.folder], check=False).returncode < 0
    assert (texts.folder / "text.sqlite-journal").exists()
    assert found(texts, "revenue") == [(2, 2), (1, 1)]
    assert texts.problem() is None


class TestDamage:
    def use(self, texts):
        """All that is done with texts; what each gives, or the sentence."""
        calls = [
            lambda: found(texts, "revenue note"),
            lambda: texts.snippets(expression_of("revenue"), [row_number(1, 1), row_number(2, 2)]),
            lambda: texts.matched_words('"revenue"', row_number(1, 1)),
            lambda: [texts.text(n) for n in numbered(1, "", "", "")],
            lambda: texts.numbers(ocr=True).tolist(),
            lambda: texts.that_say_something([row_number(1, 1)]),
            lambda: texts.complete,
            texts.problem,
            lambda: texts.put(numbered(4, "a new one"), 4),
            lambda: texts.tidy({1, 2, 4}),
        ]
        sentences = []
        for call in calls:
            try:
                call()
            except AnchorFoldError as error:
                sentences.append(str(error))
        assert all("\n" not in sentence and str(texts.folder) in sentence for sentence in sentences)

    def test_a_flipped_bit_is_one_sentence_and_what_is_mended_is_whole(self, texts):
        whole = texts.path.read_bytes()
        sound = {n: texts.text(n) for n in texts.numbers().tolist()}
        rng, noticed = random.Random(5), 0
        used = [i for i, byte in enumerate(whole) if byte]
        for place in rng.sample(used, 80):
            data = bytearray(whole)
            data[place] ^= 1 << rng.randrange(8)
            texts.path.write_bytes(data)
            problem = texts.problem()
            noticed += problem is not None
            if problem is None:  # what nobody notices changes nothing
                assert {n: texts.text(n) for n in texts.numbers().tolist()} == sound
                assert found(texts, "revenue") == [(2, 2), (1, 1)]
            self.use(texts)
            texts.path.write_bytes(data)
            texts.rebuild({1, 2})
            assert texts.problem() is None
            left = {n: texts.text(n) for n in texts.numbers().tolist()}
            assert left.items() <= sound.items()
            assert len(left) >= 3 or problem is not None
        assert noticed > 30

    @pytest.mark.parametrize("content", [b"", b"nonsense" * 600])
    def test_a_file_that_is_none(self, texts, content):
        texts.path.write_bytes(content)
        self.use(texts)
        texts.path.write_bytes(content)
        assert texts.problem() is not None
        texts.rebuild({1, 2})
        assert texts.problem() is None
        assert not texts.complete

    def test_words_that_are_not_those_of_the_texts(self, texts):
        with sqlite3.connect(texts.path) as file:
            file.execute("INSERT INTO words (words) VALUES ('delete-all')")
        file.close()
        assert "malformed" in texts.problem()
        texts.rebuild({1, 2})
        assert found(texts, "revenue") == [(2, 2), (1, 1)]

    def test_left_overs_of_a_rebuilding_that_died(self, texts):
        for name in module.FILES[1:]:
            (texts.folder / name).write_bytes(b"half")
        os.unlink(texts.folder / "text.sqlite-journal")
        texts.rebuild({2})
        assert sorted(os.listdir(texts.folder)) == ["text.sqlite"]
        assert len(texts.numbers()) == 2
