"""Files, pages and models that fail while documents are added."""

import hashlib
import os

import pytest

from anchorfold import Index
from anchorfold.errors import BrokenModelError
from tests.indexes.contents import REPORT_PAGES, indexed_pages
from tests.number_reader import NumberReader, page_image, write_pdf


def test_stored_pages_belong_to_the_bytes_that_were_read(index, tmp_path, monkeypatch):
    path = write_pdf(tmp_path / "a.pdf", [1, 2])
    read = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    monkeypatch.setattr("anchorfold.ingestion.ingest.MAX_PASSES", 1)
    index.add(path, progress=lambda p: write_pdf(path, [5]) if p.pages == 1 else None)
    assert list(index.store.stored_pages([str(path)]).values()) == [{read: {1, 2}}]


def test_a_touched_file_is_unchanged_and_its_original_is_available(index, reports):
    index.add("reports")
    os.utime(reports / "a.pdf", ns=(5, 5))
    assert index.add("reports").unchanged == 3
    assert index.page("reports/a.pdf", 1).has_original
    version = index.version
    index.add("reports")
    assert index.version == version


def test_unreadable_files_are_reported_with_reasons(index, tmp_path):
    (tmp_path / "bad.pdf").write_text("nonsense")
    report = index.add(tmp_path / "bad.pdf")
    assert [why for _, why in report.skipped] == ["not a PDF, despite its extension"]
    assert index.info().pages == 0


def test_names_that_print_the_same_are_two_documents(index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("odd")
    for name, number in ((b"bad\xff\xfe.png", 3), (rb"bad\xff\xfe.png", 4)):
        with open(os.path.join(b"odd", name), "wb") as file:
            page_image(number).save(file, "PNG")
    report = index.add("odd")
    assert (report.added, report.skipped) == (2, [])
    assert {index.search(f"page {n}", top_k=1)[0].document for n in (3, 4)} == {d for d, _ in indexed_pages(index)}
    assert index.add("odd", prune=True).unchanged == 2
    os.remove(os.path.join(b"odd", b"bad\xff\xfe.png"))
    assert index.add("odd", prune=True).removed == 1
    assert index.search("page 4", top_k=1)[0].document == r"odd/bad\\xff\\xfe.png"


def test_a_broken_model_stops_the_run_at_once(index, reports, monkeypatch):
    calls = []

    def broken(self, images, *more):
        calls.append(len(images))
        raise BrokenModelError("the model cannot run: out of memory.")

    monkeypatch.setattr(NumberReader, "encode_documents", broken)
    with pytest.raises(BrokenModelError, match="out of memory"):
        index.add("reports", batch_size=2)
    assert calls == [2, 1]  # once more page by page: too many at once may have been the reason


def test_pages_that_all_fail_with_one_error_stop_the_run(index, reports, monkeypatch):
    tried = []

    def failing(self, images, *more):
        tried.append(1)
        raise ValueError("hidden holds NaN")

    monkeypatch.setattr(NumberReader, "encode_documents", failing)
    with pytest.raises(BrokenModelError, match=r"3 pages in a row .*hidden holds NaN.*a\.pdf page 3"):
        index.add("reports")
    assert len(tried) == 3
    monkeypatch.undo()
    assert index.add(reports).pages == 6


def test_a_page_that_cannot_be_encoded_is_tried_again_later(index, reports, reader, monkeypatch):
    real = NumberReader.encode_documents

    def moody(self, images, *more):
        if any(abs(images[0].getpixel((5, 5))[0] - 10) < 8 and images[0].getpixel((5, 50))[0] > 50 for _ in images):
            raise RuntimeError("no memory")
        return real(self, images, *more)

    monkeypatch.setattr(NumberReader, "encode_documents", moody)
    report = index.add("reports")
    assert any("cannot be encoded (no memory)" in why for _, why in report.skipped)
    monkeypatch.setattr(NumberReader, "encode_documents", real)
    index.add(reports)
    assert sorted(p for _, p in indexed_pages(index)) == sorted(p for _, p in REPORT_PAGES)


def test_a_wrong_model_leaves_no_folder(tmp_path):
    for name in ("nan0", "./nowhere"):
        with pytest.raises(FileNotFoundError, match="there is no model folder"):
            Index.create(tmp_path / "my.index", name)
        assert not (tmp_path / "my.index").exists()
    (tmp_path / "my.index").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no model folder"):
        Index.create(tmp_path / "my.index", "nan0")
    assert (tmp_path / "my.index").is_dir()


def test_progress_ends_at_one(index, reports):
    shares = []
    index.add("reports", progress=lambda p: shares.append(p.share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_batches_contain_pages_of_several_documents(index, reports):
    index.add("reports", batch_size=4)
    assert indexed_pages(index) == REPORT_PAGES


def test_nothing_outside_the_index_is_written(index, reports, tmp_path):
    before = {p: p.stat().st_mtime_ns for p in reports.rglob("*")}
    index.add("reports")
    index.search("page 1")
    assert {p: p.stat().st_mtime_ns for p in reports.rglob("*")} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.index", "reports"]


def test_an_index_inside_its_own_documents(reports, reader):
    page_image(9).save(reports / "cover.png")
    index = Index.create(reports / "my.index", reader)
    index.add("reports")
    assert index.add("reports").unchanged == 4
