"""Replacing, searching and removing documents of an index."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from anchorfold import Index
from anchorfold.errors import AnchorFoldError, LockedError
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.lock import writer_lock
from tests.indexes.contents import REPORT_PAGES, indexed_pages
from tests.number_reader import NumberReader, write_pdf
from tests.storage.page_rows import all_pages, live_pages


def threaded(work):
    """The result of a function in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


class TestReplacing:
    def test_a_reader_never_sees_both_versions_or_neither(self, index, tmp_path, monkeypatch):
        monkeypatch.setattr("anchorfold.ingestion.ingest.COMMIT_PAGES", 2)
        path = write_pdf(tmp_path / "a.pdf", list(range(100, 110)))
        index.add(path)
        write_pdf(path, list(range(200, 207)))
        seen, done = [], threading.Event()

        def watch():
            store = EmbeddedStore.open(index.path)
            while not done.is_set():
                rows = live_pages(store)
                seen.append((len({digest for _, _, digest in rows}), len(rows)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        slow = Index.open(index.path, NumberReader(0.05))
        slow.add(path)
        time.sleep(0.2)
        done.set()
        watcher.join()
        assert set(seen) == {(1, 10), (1, 7)}

    def test_an_interrupted_replacement_is_continued(self, index, tmp_path, reader):
        path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
        index.add(path)
        write_pdf(path, [4, 5, 6])
        reader.encoded.clear()
        index.add(path, stop=lambda: len(reader.encoded) >= 2)
        assert index.search("page 1", top_k=1)[0].score > index.search("page 4", top_k=1)[0].score
        os.utime(path)  # written again meanwhile, with the same content
        index.add(path)
        assert reader.encoded == [4, 5, 6]
        assert index.info().pages == 3
        version = index.version
        index.add(path)
        assert index.version == version

    def test_going_back_to_the_old_version_drops_staged_pages(self, index, tmp_path, reader):
        path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
        old = path.read_bytes()
        index.add(path)
        write_pdf(path, [4, 5, 6])
        index.add(path, stop=lambda: 5 in reader.encoded)
        path.write_bytes(old)
        assert index.add(path).unchanged == 1
        assert len(all_pages(index.store)) == 3


class TestSearching:
    def test_several_queries_filters_and_exact(self, index, reports):
        index.add("reports")
        answers = index.search(["page 77", "page 1"], top_k=3)
        assert [hits[0].document for hits in answers] == ["reports/c.png", "reports/a.pdf"]
        only = index.search("page 77", documents="*.pdf")
        assert {h.document for h in only} == {"reports/a.pdf", "reports/b.pdf"}
        exact, fast = (index.search("page 77", exact=e) for e in (True, False))
        assert [(h.document, h.page) for h in exact] == [(h.document, h.page) for h in fast]
        with pytest.raises(AnchorFoldError, match="no document that matches"):
            index.search("page 77", documents="nothing.pdf")
        with pytest.raises(AnchorFoldError, match="at least 1"):
            index.search("page 77", top_k=0)

    def test_an_open_reader_sees_new_pages(self, index, reports, reader):
        other = Index.open(index.path, reader)
        assert other.search("page 1") == []
        index.add("reports")
        assert other.search("page 77", top_k=1)[0].document == "reports/c.png"
        index.remove("reports/c.png")
        assert other.search("page 77", top_k=1)[0].document != "reports/c.png"

    def test_one_page_with_its_groups(self, index, reports):
        index.add("reports")
        page = index.page("reports/b.pdf", 2)
        assert (len(page.vectors), page.kept, page.full, page.encoded.full, page.pages) == (12, 12, 24, 24, 2)
        assert page.thumbnail.startswith(b"RIFF")
        assert (page.document, page.page, page.problem, page.has_original) == ("reports/b.pdf", 2, None, True)
        assert max(page.image(50).size) == 50
        with pytest.raises(AnchorFoldError, match="no page 9"):
            index.page("reports/b.pdf", 9)


class TestThreads:
    def test_threads_read_whole_commits_while_another_writes(self, index, tmp_path):
        path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
        index.add(path)
        reader, problems, done = Index.open(index.path, NumberReader()), [], threading.Event()

        def read(work):
            while not done.is_set():
                try:
                    work()
                except Exception as error:
                    problems.append(error)
                    return

        works = [lambda: reader.search("page 1"), reader.info, lambda: reader.page("a.pdf", 1)]
        threads = [threading.Thread(target=read, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for i in range(12):
            write_pdf(path, [10 * i + 1, 10 * i + 2, 10 * i + 3])
            index.add(path)
        done.set()
        for thread in threads:
            thread.join()
        assert problems == []


class TestRemoving:
    def test_an_empty_name_is_refused(self, index, reports):
        index.add("reports")
        for attempt in (lambda: index.remove(""), lambda: index.remove(["reports/a.pdf", " "]),
                        lambda: index.search("page 1", documents=""), lambda: index.page("", 1)):  # fmt: skip
            with pytest.raises(AnchorFoldError, match="empty document name"):
                attempt()
        assert indexed_pages(index) == REPORT_PAGES

    def test_by_name_folder_and_pattern(self, index, reports):
        index.add("reports")
        assert index.remove("reports/a.pdf") == ["reports/a.pdf"]
        assert index.remove("*.png") == ["reports/c.png"]
        with pytest.raises(AnchorFoldError, match="contains no document"):
            index.remove(["reports/b.pdf", "reports/a.pdf"])
        assert indexed_pages(index) == [("reports/b.pdf", 1), ("reports/b.pdf", 2)]
        assert index.remove("reports") == ["reports/b.pdf"]
        assert index.search("page 1") == []
        assert index.add("reports").added == 3


class TestOtherWriters:
    def test_waiting_for_another_writer_can_be_stopped(self, index, reports):
        asked = []

        def stop():
            asked.append(1)
            return len(asked) > 2

        with writer_lock(index.path, 0):
            report = threaded(lambda: index.add("reports", stop=stop))
        assert report.interrupted
        assert report.pages == 0

    def test_a_second_writer_need_not_wait(self, index, reports):
        with writer_lock(index.path, 0), pytest.raises(LockedError, match="is writing to"):
            index.add("reports", wait=0)
