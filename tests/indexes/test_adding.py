"""Adding documents: what is read, what is skipped, and what changes while it is read."""

import os

from anchorfold import Index
from tests.indexes.contents import REPORT_PAGES, indexed_pages
from tests.number_reader import page_image, write_pdf


def test_pages_can_be_searched(index, reports):
    report = index.add("./reports")
    assert (report.added, report.pages, report.skipped) == (3, 6, [])
    assert report.vectors * 2 == report.full_vectors == 6 * 24
    hit = index.search("page 12", top_k=2)[0]
    assert (hit.document, hit.page) == ("reports/b.pdf", 2)


def test_only_changed_documents_are_encoded_again(index, reports, reader):
    index.add("reports")
    reader.encoded.clear()
    assert index.add("reports").unchanged == 3
    assert reader.encoded == []
    os.utime(reports / "a.pdf")  # a new time, the same content
    assert index.add("reports").unchanged == 3
    write_pdf(reports / "b.pdf", [13, 14, 15])
    write_pdf(reports / "d.pdf", [20])
    report = index.add("reports")
    assert (report.added, report.changed, report.unchanged) == (1, 1, 2)
    assert reader.encoded == [13, 14, 15, 20]
    assert [d for d, _ in indexed_pages(index)].count("reports/b.pdf") == 3
    assert index.search("page 12", top_k=1)[0].score < index.search("page 13", top_k=1)[0].score


def test_the_same_file_by_another_path_is_the_same_document(index, reports):
    index.add("reports")
    assert index.add(reports.resolve()).unchanged == 3
    assert indexed_pages(index) == REPORT_PAGES


def test_documents_and_index_may_move_together(index, reports, reader, tmp_path, monkeypatch):
    index.add("reports")
    (tmp_path / "elsewhere").mkdir()
    for name in ("reports", "my.index"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    monkeypatch.chdir(tmp_path / "elsewhere")
    reader.encoded.clear()
    moved = Index.open("my.index", reader)
    assert moved.add("reports").unchanged == 3
    assert reader.encoded == []
    assert indexed_pages(moved) == REPORT_PAGES
    assert moved.search("page 77", top_k=1)[0].source == str(tmp_path / "elsewhere/reports/c.png")


def test_two_files_of_the_same_name_are_two_documents(index, reports, tmp_path, monkeypatch):
    index.add("reports")
    write_pdf(tmp_path / "second/reports/a.pdf", [8])
    monkeypatch.chdir(tmp_path / "second")
    assert index.add("reports").added == 1
    assert indexed_pages(index) == [(str(tmp_path / "second/reports/a.pdf"), 1), *REPORT_PAGES]
    assert index.add("reports").unchanged == 1


def test_deleted_documents_are_reported_or_pruned(index, reports):
    index.add("reports")
    (reports / "a.pdf").unlink()
    assert index.add("reports").missing == ["reports/a.pdf"]
    assert indexed_pages(index) == REPORT_PAGES
    assert index.add("reports", prune=True).removed == 1
    assert ("reports/a.pdf", 1) not in indexed_pages(index)


def test_a_changed_document_that_cannot_be_read_keeps_its_old_pages(index, reports):
    index.add("reports")
    (reports / "a.pdf").write_bytes(b"")
    report = index.add("reports")
    assert report.skipped == [("reports/a.pdf", "empty file; the version indexed before is kept")]
    assert indexed_pages(index) == REPORT_PAGES


def test_bad_files_do_not_stop_the_run(index, reports):
    (reports / "bad.pdf").write_text("nonsense")
    report = index.add("reports")
    assert [name for name, _ in report.skipped] == ["reports/bad.pdf"]
    assert indexed_pages(index) == REPORT_PAGES


def test_an_unreadable_page_is_recorded_and_not_read_again(index, reports, reader):
    first, other = page_image(5), page_image(6)
    first.save(reports / "x.tiff", compression="tiff_adobe_deflate")
    start = (reports / "x.tiff").stat().st_size
    first.save(reports / "x.tiff", save_all=True, append_images=[other], compression="tiff_adobe_deflate")
    data = bytearray((reports / "x.tiff").read_bytes())
    pixels = data.index(b"\x78\x9c", start)
    data[pixels : pixels + 20] = bytes(20)
    (reports / "x.tiff").write_bytes(data)
    report = index.add("reports/x.tiff")
    assert [name for name, _ in report.skipped] == ["reports/x.tiff page 2"]
    assert (index.info().pages, index.info().unreadable_pages) == (1, 1)
    reader.encoded.clear()
    assert index.add("reports/x.tiff").unchanged == 1


def test_a_stopped_run_keeps_its_pages_and_can_be_continued(index, reports, reader):
    seen = []
    report = index.add("reports", progress=lambda p: seen.append(p.pages), stop=lambda: len(reader.encoded) >= 2)
    assert report.interrupted
    assert indexed_pages(index) == REPORT_PAGES[:2]
    reader.encoded.clear()
    assert not index.add("reports").interrupted
    assert reader.encoded == [3, 11, 12, 77]
    assert indexed_pages(index) == REPORT_PAGES


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(index, tmp_path, reader):
    path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])

    def replace_once(progress):
        if reader.encoded == [1]:
            write_pdf(path, [4, 5, 6, 7])

    report = index.add(path, progress=replace_once)
    assert report.skipped == []
    assert report.added + report.changed == 1
    assert index.info().pages == 4
    assert index.search("page 7", top_k=1)[0].page == 4
    reader.encoded.clear()
    assert index.add(path).unchanged == 1
    assert reader.encoded == []


def test_a_file_that_keeps_changing_is_reported_and_indexed_later(index, tmp_path, reader):
    path = write_pdf(tmp_path / "a.pdf", [1])
    report = index.add(path, progress=lambda _: write_pdf(path, [len(reader.encoded) + 1]))
    assert [why for _, why in report.skipped] == ["changes while it is read: index it again when it is finished"]
    assert index.info().pages == 1
    write_pdf(path, [99])
    assert index.add(path).changed == 1
    assert index.search("page 99", top_k=1)[0].score > 20
