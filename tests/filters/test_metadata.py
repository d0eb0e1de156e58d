"""Metadata of documents: given, changed, kept by updates, and never half of a change."""

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anchorfold import Index
from anchorfold.errors import AnchorFoldError
from anchorfold.storage.checking import check
from tests.filters.sample_metadata import matching_pages
from tests.number_reader import NumberReader, write_pdf


class TestUpdating:
    def test_metadata_of_unchanged_documents_needs_no_model(self, index, tmp_path, monkeypatch):
        monkeypatch.setattr("anchorfold.load", lambda *_, **__: pytest.fail("a model was loaded"))
        monkeypatch.setattr("anchorfold.indexes.index_model.load_model", lambda *_: pytest.fail("a model was loaded"))
        monkeypatch.setattr(
            "anchorfold.ingestion.encoded_pages.Renderer", lambda *_, **__: pytest.fail("a page was rendered")
        )
        (tmp_path / "about.csv").write_text("path,year,team\nreports/*,2030,\n")
        segments = sorted(path.name for path in (index.path / "vectors").iterdir())
        report = Index.open(index.path).add("reports", metadata=tmp_path / "about.csv")
        assert (report.unchanged, report.metadata_updated, report.pages) == (3, 3, 0)
        assert matching_pages(index, "year = 2030 and (signed or signed is null)") == [
            ("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3), ("c.png", 1)
        ]  # fmt: skip
        assert sorted(path.name for path in (index.path / "vectors").iterdir()) == segments
        assert "team" not in index.columns()  # the table removed it from all documents
        assert Index.open(index.path).set_metadata(tmp_path / "about.csv").documents == 0
        version = index.version
        index.set_metadata({"year": 2030})
        assert index.version == version  # nothing changed, and nothing was committed

    def test_metadata_can_be_set_without_the_files(self, index, tmp_path):
        (tmp_path / "reports").rename(tmp_path / "elsewhere")
        assert index.set_metadata({"year": 1999}, documents="reports/old").documents == 1
        assert matching_pages(index, "year = 1999") == [("b.pdf", 1), ("b.pdf", 2)]
        with pytest.raises(AnchorFoldError, match="contains no document"):
            index.set_metadata({"year": 1}, documents="nobody.pdf")

    def test_a_replaced_document_keeps_metadata_of_users(self, index, reader):
        write_pdf(Path("reports/a.pdf"), [41, 42])
        reader.encoded.clear()
        assert index.add("reports").changed == 1
        assert reader.encoded == [41, 42]
        assert matching_pages(index, "team = 'sales'") == [("a.pdf", 1), ("a.pdf", 2)]
        write_pdf(Path("reports/a.pdf"), [43])
        index.add("reports", metadata={"team": "research"})
        assert matching_pages(index, "team = 'research' and year = 2024") == [("a.pdf", 1)]

    def test_metadata_applies_to_a_staged_version_as_well(self, index):
        write_pdf(Path("reports/a.pdf"), [41, 42, 43])
        index.add("reports", stop=iter([False, True, True, True, True]).__next__)
        assert any(not version.live for version in index.store.read(lambda snapshot: list(snapshot.versions())))
        index.set_metadata({"team": "research"}, documents="*a.pdf")
        index.add("reports")
        assert matching_pages(index, "team = 'research'") == [("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)]

    def test_metadata_is_removed_with_its_document(self, index):
        index.remove("*a.pdf")
        assert matching_pages(index, "year >= 2024") == []
        index.add("reports")
        assert matching_pages(index, "year is null and page = 3") == [("a.pdf", 3)]

    def test_moved_documents_keep_their_metadata_and_accept_more(self, index, tmp_path, monkeypatch, reader):
        (tmp_path / "reports").rename(tmp_path / "moved")
        (tmp_path / "there").mkdir()
        (tmp_path / "moved").rename(tmp_path / "there/reports")
        monkeypatch.chdir(tmp_path / "there")
        reader.encoded.clear()
        index.add("reports", metadata={"shelf": "left"})
        assert reader.encoded == []
        assert matching_pages(index, "shelf = 'left' and team = 'legal'") == [("b.pdf", 1), ("b.pdf", 2)]

    def test_an_unused_column_is_removed(self, index):
        index.set_metadata({"rate": None})
        assert "rate" not in index.columns()
        index.set_metadata({"rate": "high"}, documents="*.png")
        assert index.columns()["rate"] == "text"
        with pytest.raises(AnchorFoldError, match="rate is text in this index"):
            index.set_metadata({"rate": 2}, documents="*a.pdf")

    def test_wrong_metadata_changes_nothing(self, index, reader):
        write_pdf(Path("reports/new.pdf"), [90])
        reader.encoded.clear()
        version = index.version
        with pytest.raises(AnchorFoldError, match="year is an integer in this index"):
            index.add("reports/new.pdf", metadata={"year": "soon"})
        assert (reader.encoded, index.version) == ([], version)

    def test_a_reader_sees_one_commit_or_the_next(self, index):
        """All documents change together: a filter never sees half of it."""
        wrong, stop = [], threading.Event()
        searching = Index.open(index.path, NumberReader())

        def search():
            while not stop.is_set():
                hits = searching.search("page 12", where="year is not null")
                if len({hit.metadata["year"] for hit in hits}) > 1 or len(hits) != 6:
                    wrong.append(hits)

        index.set_metadata({"year": 0})
        thread = threading.Thread(target=search)
        thread.start()
        for year in range(1, 30):
            index.set_metadata({"year": year})
        stop.set()
        thread.join()
        assert wrong == []


WORKER = """
import sys
from pathlib import Path
from anchorfold.retrieval.embedded_store import EmbeddedStore
store = EmbeddedStore.open(Path(sys.argv[1]))
sources = list(store.names())
print("ready", flush=True)
with store.writing():
    for year in range(10_000):
        known = {"year": year, "text": str(year) * 50}
        store.set_metadata(dict.fromkeys(sources, known), {"year": "integer", "text": "text"})
"""


def test_a_writer_that_is_killed_leaves_one_commit_or_the_next(index):
    rng = random.Random(5)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", WORKER, str(index.path)], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        threading.Event().wait(rng.uniform(0.02, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert check(index.path) == []
        opened = Index.open(index.path, NumberReader())
        known = {(hit.metadata.get("year"), hit.metadata.get("text")) for hit in opened.search("page 12")}
        assert len(known) == 1 or known == {(2024, None), (2023, None), (None, None)}
        assert matching_pages(opened, "team = 'sales'") == [("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)]
