import hashlib
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import anchorfold
from anchorfold import AGC, AnchorFold, DocPruner, FullIndex, Index
from anchorfold.errors import AnchorFoldError, BrokenModelError, LockedError, MismatchError, NotAnIndexError
from anchorfold.explain.originals import is_unchanged
from anchorfold.index.options import choose_compressor
from anchorfold.index.store.folder import folder_bytes
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.table import PageTable
from tests.number_reader import NumberReader, page_image, write_pdf


@pytest.fixture
def reader():
    return NumberReader()


@pytest.fixture
def index(tmp_path, reader):
    return Index.create(tmp_path / "my.index", reader, AnchorFold(ratio=0.5))


@pytest.fixture
def reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pdf(tmp_path / "reports/a.pdf", [1, 2, 3])
    write_pdf(tmp_path / "reports/b.pdf", [11, 12])
    page_image(77).save(tmp_path / "reports/c.png")
    return tmp_path / "reports"


def threaded(work):
    """The result of some work in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def stored(index):
    table = PageTable.open(index.path)
    return sorted((page.document, page.page) for page in table.pages())


ALL = [("reports/a.pdf", 1), ("reports/a.pdf", 2), ("reports/a.pdf", 3), ("reports/b.pdf", 1), ("reports/b.pdf", 2), ("reports/c.png", 1)]  # fmt: skip  # noqa: E501


class TestAdding:
    def test_pages_are_found_by_their_number(self, index, reports):
        report = index.add("./reports")
        assert (report.added, report.pages, report.skipped) == (3, 6, [])
        assert report.vectors * 2 == report.full_vectors == 6 * 24
        hit = index.search("page 12", top=2)[0]
        assert (hit.document, hit.page) == ("reports/b.pdf", 2)

    def test_again_only_what_changed(self, index, reports, reader):
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
        assert [d for d, _ in stored(index)].count("reports/b.pdf") == 3
        assert index.search("page 12", top=1)[0].score < index.search("page 13", top=1)[0].score

    def test_the_same_file_by_another_path_is_the_same_document(self, index, reports):
        index.add("reports")
        assert index.add(reports.resolve()).unchanged == 3
        assert stored(index) == ALL

    def test_documents_and_index_may_move_together(self, index, reports, reader, tmp_path, monkeypatch):
        index.add("reports")
        (tmp_path / "elsewhere").mkdir()
        for name in ("reports", "my.index"):
            (tmp_path / name).rename(tmp_path / "elsewhere" / name)
        monkeypatch.chdir(tmp_path / "elsewhere")
        reader.encoded.clear()
        moved = Index.open("my.index", reader)
        assert moved.add("reports").unchanged == 3
        assert reader.encoded == []
        assert stored(moved) == ALL
        assert moved.search("page 77", top=1)[0].source == str(tmp_path / "elsewhere/reports/c.png")

    def test_two_files_of_the_same_name_are_two_documents(self, index, reports, tmp_path, monkeypatch):
        index.add("reports")
        write_pdf(tmp_path / "second/reports/a.pdf", [8])
        monkeypatch.chdir(tmp_path / "second")
        assert index.add("reports").added == 1
        assert stored(index) == [(str(tmp_path / "second/reports/a.pdf"), 1), *ALL]
        assert index.add("reports").unchanged == 1

    def test_documents_that_are_gone(self, index, reports):
        index.add("reports")
        (reports / "a.pdf").unlink()
        assert index.add("reports").missing == ["reports/a.pdf"]
        assert stored(index) == ALL
        assert index.add("reports", prune=True).removed == 1
        assert ("reports/a.pdf", 1) not in stored(index)

    def test_a_changed_document_that_cannot_be_read_keeps_its_old_pages(self, index, reports):
        index.add("reports")
        (reports / "a.pdf").write_bytes(b"")
        report = index.add("reports")
        assert report.skipped == [("reports/a.pdf", "empty file; the version indexed before is kept")]
        assert stored(index) == ALL

    def test_bad_files_do_not_stop_the_run(self, index, reports):
        (reports / "bad.pdf").write_text("nonsense")
        report = index.add("reports")
        assert [name for name, _ in report.skipped] == ["reports/bad.pdf"]
        assert stored(index) == ALL

    def test_a_page_that_fails_is_noted_and_not_tried_for_ever(self, index, reports, reader):
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

    def test_stopping_keeps_what_was_done_and_goes_on_later(self, index, reports, reader):
        seen = []
        report = index.add("reports", progress=lambda p: seen.append(p.pages), stop=lambda: len(reader.encoded) >= 2)
        assert report.interrupted
        assert stored(index) == ALL[:2]
        reader.encoded.clear()
        assert not index.add("reports").interrupted
        assert reader.encoded == [3, 11, 12, 77]
        assert stored(index) == ALL

    def test_a_file_that_is_replaced_while_it_is_read_is_done_again(self, index, tmp_path, reader):
        path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])

        def replace_once(progress):
            if reader.encoded == [1]:
                write_pdf(path, [4, 5, 6, 7])

        report = index.add(path, progress=replace_once)
        assert report.skipped == []
        assert report.added + report.changed == 1
        assert index.info().pages == 4
        assert index.search("page 7", top=1)[0].page == 4
        reader.encoded.clear()
        assert index.add(path).unchanged == 1
        assert reader.encoded == []

    def test_a_file_that_never_rests_is_one_line_and_done_later(self, index, tmp_path, reader):
        path = write_pdf(tmp_path / "a.pdf", [1])
        report = index.add(path, progress=lambda _: write_pdf(path, [len(reader.encoded) + 1]))
        assert [why for _, why in report.skipped] == ["changes while it is read: index it again when it is finished"]
        assert index.info().pages == 1
        write_pdf(path, [99])
        assert index.add(path).changed == 1
        assert index.search("page 99", top=1)[0].score > 20

    def test_what_is_stored_belongs_to_the_bytes_that_were_read(self, index, tmp_path, monkeypatch):
        path = write_pdf(tmp_path / "a.pdf", [1, 2])
        read = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        monkeypatch.setattr("anchorfold.index.ingest.PASSES", 1)
        index.add(path, progress=lambda p: write_pdf(path, [5]) if p.pages == 1 else None)
        (state,) = PageTable.open(index.path).documents().values()
        assert (state.digest, state.have) == (read, {1, 2})

    def test_a_touched_file_is_unchanged_and_its_original_at_hand(self, index, reports):
        index.add("reports")
        os.utime(reports / "a.pdf", ns=(5, 5))
        assert index.add("reports").unchanged == 3
        assert is_unchanged(index.page("reports/a.pdf", 1)[1])
        version = index.version
        index.add("reports")
        assert index.version == version

    def test_nothing_but_unreadable_files_says_why(self, index, tmp_path):
        (tmp_path / "bad.pdf").write_text("nonsense")
        report = index.add(tmp_path / "bad.pdf")
        assert [why for _, why in report.skipped] == ["not a PDF, whatever its name says"]
        assert index.info().pages == 0

    def test_names_that_print_alike_are_two_documents(self, index, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        os.mkdir("odd")
        for name, number in ((b"bad\xff\xfe.png", 3), (rb"bad\xff\xfe.png", 4)):
            with open(os.path.join(b"odd", name), "wb") as file:
                page_image(number).save(file, "PNG")
        report = index.add("odd")
        assert (report.added, report.skipped) == (2, [])
        assert {index.search(f"page {n}", top=1)[0].document for n in (3, 4)} == {d for d, _ in stored(index)}
        assert index.add("odd", prune=True).unchanged == 2
        os.remove(os.path.join(b"odd", b"bad\xff\xfe.png"))
        assert index.add("odd", prune=True).removed == 1
        assert index.search("page 4", top=1)[0].document == r"odd/bad\\xff\\xfe.png"

    def test_a_broken_model_stops_the_run_at_once(self, index, reports, monkeypatch):
        calls = []

        def broken(self, images, *more):
            calls.append(len(images))
            raise BrokenModelError("the model cannot run: out of memory.")

        monkeypatch.setattr(NumberReader, "encode_pages", broken)
        with pytest.raises(BrokenModelError, match="out of memory"):
            index.add("reports", batch_size=2)
        assert calls == [2, 1]  # once more page by page: too many at once may have been the reason

    def test_pages_that_all_fail_alike_stop_the_run(self, index, reports, monkeypatch):
        tried = []

        def failing(self, images, *more):
            tried.append(1)
            raise ValueError("hidden holds NaN")

        monkeypatch.setattr(NumberReader, "encode_pages", failing)
        with pytest.raises(BrokenModelError, match=r"3 pages in a row .*hidden holds NaN.*a\.pdf page 3"):
            index.add("reports")
        assert len(tried) == 3
        monkeypatch.undo()
        assert index.add(reports).pages == 6

    def test_a_page_that_cannot_be_encoded_is_tried_again_later(self, index, reports, reader, monkeypatch):
        real = NumberReader.encode_pages

        def moody(self, images, *more):
            if any(abs(images[0].getpixel((5, 5))[0] - 10) < 8 and images[0].getpixel((5, 50))[0] > 50 for _ in images):
                raise RuntimeError("no memory")
            return real(self, images, *more)

        monkeypatch.setattr(NumberReader, "encode_pages", moody)
        report = index.add("reports")
        assert any("cannot be encoded (no memory)" in why for _, why in report.skipped)
        monkeypatch.setattr(NumberReader, "encode_pages", real)
        index.add(reports)
        assert sorted(p for _, p in stored(index)) == sorted(p for _, p in ALL)

    def test_progress_ends_at_one(self, index, reports):
        shares = []
        index.add("reports", progress=lambda p: shares.append(p.share))
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)

    def test_batches_hold_pages_of_several_documents(self, index, reports):
        index.add("reports", batch_size=4)
        assert stored(index) == ALL

    def test_nothing_outside_the_index_is_written(self, index, reports, tmp_path):
        before = {p: p.stat().st_mtime_ns for p in reports.rglob("*")}
        index.add("reports")
        index.search("page 1")
        assert {p: p.stat().st_mtime_ns for p in reports.rglob("*")} == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["my.index", "reports"]

    def test_an_index_inside_its_own_documents(self, reports, reader):
        page_image(9).save(reports / "cover.png")
        index = Index.create(reports / "my.index", reader)
        index.add("reports")
        assert index.add("reports").unchanged == 4


class TestReplacing:
    def test_a_reader_never_sees_both_versions_or_neither(self, index, tmp_path, monkeypatch):
        monkeypatch.setattr("anchorfold.index.ingest.COMMIT_PAGES", 2)
        path = write_pdf(tmp_path / "a.pdf", list(range(100, 110)))
        index.add(path)
        write_pdf(path, list(range(200, 207)))
        seen, done = [], threading.Event()

        def watch():
            table = PageTable.open(index.path)
            while not done.is_set():
                rows = table.snapshot(lambda snapshot: list(snapshot.pages()))
                seen.append((len({page.version.digest for page in rows}), len(rows)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        slow = Index.open(index.path, NumberReader(0.05))
        slow.add(path)
        time.sleep(0.2)
        done.set()
        watcher.join()
        assert set(seen) == {(1, 10), (1, 7)}

    def test_an_interrupted_replacement_is_taken_up(self, index, tmp_path, reader):
        path = write_pdf(tmp_path / "a.pdf", [1, 2, 3])
        index.add(path)
        write_pdf(path, [4, 5, 6])
        reader.encoded.clear()
        index.add(path, stop=lambda: len(reader.encoded) >= 2)
        assert index.search("page 1", top=1)[0].score > index.search("page 4", top=1)[0].score
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
        assert len(list(PageTable.open(index.path).pages(live=False))) == 3


class TestSearching:
    def test_several_queries_filters_and_exact(self, index, reports):
        index.add("reports")
        answers = index.search(["page 77", "page 1"], top=3)
        assert [hits[0].document for hits in answers] == ["reports/c.png", "reports/a.pdf"]
        only = index.search("page 77", documents="*.pdf")
        assert {h.document for h in only} == {"reports/a.pdf", "reports/b.pdf"}
        exact, fast = (index.search("page 77", exact=e) for e in (True, False))
        assert [(h.document, h.page) for h in exact] == [(h.document, h.page) for h in fast]
        with pytest.raises(AnchorFoldError, match="no document that matches"):
            index.search("page 77", documents="nothing.pdf")
        with pytest.raises(AnchorFoldError, match="at least 1"):
            index.search("page 77", top=0)

    def test_an_open_reader_sees_new_pages(self, index, reports, reader):
        other = Index.open(index.path, reader)
        assert other.search("page 1") == []
        index.add("reports")
        assert other.search("page 77", top=1)[0].document == "reports/c.png"
        index.remove("reports/c.png")
        assert other.search("page 77", top=1)[0].document != "reports/c.png"

    def test_one_page_with_its_groups(self, index, reports):
        index.add("reports")
        encoded, about = index.page("reports/b.pdf", 2)
        assert (len(encoded), encoded.full, about["pages"]) == (12, 24, 2)
        assert about["thumbnail"].startswith(b"RIFF")
        with pytest.raises(AnchorFoldError, match="no page 9"):
            index.page("reports/b.pdf", 9)


class TestThreads:
    def test_readers_of_one_index_see_one_version_each_while_others_write(self, index, tmp_path):
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
    def test_an_empty_name_means_nothing(self, index, reports):
        index.add("reports")
        for attempt in (lambda: index.remove(""), lambda: index.remove(["reports/a.pdf", " "]),
                        lambda: index.search("page 1", documents=""), lambda: index.page("", 1)):  # fmt: skip
            with pytest.raises(AnchorFoldError, match="empty name"):
                attempt()
        assert stored(index) == ALL

    def test_by_name_folder_and_pattern(self, index, reports):
        index.add("reports")
        assert index.remove("reports/a.pdf") == ["reports/a.pdf"]
        assert index.remove("*.png") == ["reports/c.png"]
        with pytest.raises(AnchorFoldError, match="holds no document"):
            index.remove(["reports/b.pdf", "reports/a.pdf"])
        assert stored(index) == [("reports/b.pdf", 1), ("reports/b.pdf", 2)]
        assert index.remove("reports") == ["reports/b.pdf"]
        assert index.search("page 1") == []
        assert index.add("reports").added == 3


class TestSettings:
    def test_info(self, index, reports):
        index.add("reports")
        info = index.info()
        assert (info.documents, info.pages, info.vectors, info.full_vectors) == (3, 6, 72, 144)
        assert info.vectors_times_smaller == 2
        assert (info.model, info.method) == ("number-reader", "anchorfold")
        assert info.vector_bytes == 72 * 16 * 2 < info.bytes

    def test_the_size_is_what_is_on_disk_and_smaller_means_bytes(self, tmp_path, reader, reports):
        index = Index.create(tmp_path / "d.index", reader, AnchorFold(ratio=0.5), bits=8)
        index.add("reports")
        before = folder_bytes(index.path)
        index.search("page 1")
        info = index.info()
        counted = subprocess.run(["du", "-sb", index.path], capture_output=True, text=True, check=True).stdout
        assert info.bytes == int(counted.split()[0]) == before  # a search leaves nothing behind
        assert info.vectors_times_smaller == info.full_vector_bytes / info.vector_bytes == 144 * 32 / (72 * 18)
        assert info.times_smaller == info.full_vector_bytes / (info.bytes - info.thumbnail_bytes - info.text_bytes)
        assert info.provenance_bytes > 0 < info.thumbnail_bytes

    @pytest.mark.parametrize(("bits", "size"), [(32, 64), (8, 18), (4, 10), (2, 6), (1, 4)])
    def test_bits(self, tmp_path, reader, reports, bits, size):
        index = Index.create(tmp_path / "d.index", reader, AnchorFold(ratio=0.5), bits=bits)
        index.add("reports")
        assert index.info().vector_bytes == 72 * size
        assert index.search("page 12", top=1)[0].page == 2

    def test_vectors_stand_on_the_disk_once(self, tmp_path):
        reader = NumberReader()
        index = Index.create(tmp_path / "d.index", reader, AnchorFold(ratio=0.5))
        index.add(write_pdf(tmp_path / "a.pdf", list(range(60))), batch_size=30)
        index.search("page 1")
        info = index.info()
        counted = info.vector_bytes + info.thumbnail_bytes + info.provenance_bytes + info.text_bytes
        rows = 60 * 48  # numbers, lengths and checksums of a page
        assert info.bytes <= 1.1 * counted + rows + 4 * 4096 + 4000

    def test_without_provenance(self, tmp_path, reader, reports):
        index = Index.create(tmp_path / "d.index", reader, AnchorFold(ratio=0.5), provenance=False)
        index.add("reports")
        assert index.info().provenance_bytes == 0
        assert index.search("page 12", top=1)[0].page == 2
        with pytest.raises(AnchorFoldError, match="--no-provenance"):
            index.page("reports/a.pdf", 1)

    def test_thumbnails_can_be_left_out(self, tmp_path, reader, reports):
        index = Index.create(tmp_path / "d.index", reader, thumbnails=False)
        index.add("reports")
        assert index.page("reports/a.pdf", 1)[1]["thumbnail"] == b""
        assert index.info().thumbnail_bytes == 0

    def test_another_model_is_one_clear_error(self, index):
        other = NumberReader()
        other.fingerprint = "other"
        with pytest.raises(MismatchError, match="another model"):
            Index.open(index.path, other)

    def test_another_compressor_is_refused(self, index, reader):
        with pytest.raises(MismatchError, match="ratio"):
            Index.open_or_create(index.path, reader, AnchorFold(ratio=0.1))
        assert Index.open_or_create(index.path, reader, AnchorFold(ratio=0.5)).settings == index.settings
        with pytest.raises(AnchorFoldError, match="already"):
            Index.create(index.path, reader, AnchorFold(ratio=0.5))

    def test_wrong_options(self, tmp_path, reader):
        for options, words in (({"ratio": 2.0}, "ratio"), ({"method": "zip"}, "zip"),
                               ({"ratio": 0.1, "cap": 3}, "not both"), ({"method": "docpruner", "cap": 9}, "not a cap"),
                               ({"method": "none", "ratio": 0.2}, "keeps all")):  # fmt: skip
            with pytest.raises(AnchorFoldError, match=words):
                choose_compressor(**options)
        with pytest.raises(AnchorFoldError, match="3 bits"):
            Index.create(tmp_path / "w.index", reader, bits=3)
        for compressor, words in ((DocPruner(0.1), "calibrated"), (AGC(0.1), "universal tokens")):
            with pytest.raises(AnchorFoldError, match=words):
                Index.create(tmp_path / "w.index", reader, compressor)

    def test_a_calibrated_docpruner_and_the_full_index_are_compressors_like_others(self, tmp_path, reader, reports):
        for name, compressor in (("d", DocPruner(0.5, threshold=0.0)), ("n", FullIndex())):
            index = Index.create(tmp_path / name, reader, compressor)
            index.add("reports")
            again = Index.open(tmp_path / name, reader)
            assert again.settings.options == compressor.options
            assert again.info().pages == 6
            assert (again.info().vectors == again.info().full_vectors) == (name == "n")

    def test_a_folder_that_is_something_else(self, tmp_path, reader):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "thesis.doc").write_text("precious")
        with pytest.raises(NotAnIndexError, match=r"thesis\.doc is in it"):
            Index.create(tmp_path / "x", reader)
        with pytest.raises(NotAnIndexError, match="is a file"):
            Index.create(tmp_path / "x" / "thesis.doc", reader)

    def test_a_creation_that_was_cut_short_can_be_repeated(self, tmp_path, reader):
        (tmp_path / "my.index" / "segments").mkdir(parents=True)
        (tmp_path / "my.index" / "logs").mkdir()
        (tmp_path / "my.index" / "logs" / "00000001.log").write_bytes(b"half a li")
        index = Index.open_or_create(tmp_path / "my.index", reader)
        assert index.info().pages == 0

    def test_waiting_for_another_writer_can_be_stopped(self, index, reports):
        asked = []

        def stop():
            asked.append(1)
            return len(asked) > 2

        with writer_lock(index.path, 0):
            report = threaded(lambda: index.add("reports", stop=stop))
        assert report.interrupted
        assert report.pages == 0

    def test_a_second_writer_does_not_wait_if_told_so(self, index, reports):
        with writer_lock(index.path, 0), pytest.raises(LockedError, match="is writing to"):
            index.add("reports", wait=0)

    def test_a_later_calibration_does_not_change_an_index(self, index, reader, reports):
        index.add("reports")
        others = [
            Index.create(f"{method}.index", reader, choose_compressor(method))
            for method in ("spread-fold", "focus-clustering", "sap")
        ]
        before = [i.compressor.signals(reader.settings) for i in (index, *others)]
        reader.settings = anchorfold.LayerSettings(window=(0, 0), sap_window=(0, 0), layers=4, steps=2)
        again = [Index.open(i.path, reader).compressor.signals(reader.settings) for i in (index, *others)]
        assert again == before
        assert [(s.layer, s.steps) for s in again[0]] == [(1, 6), (2, 6)]
        settings = index.info().settings
        assert (settings["window"], settings["steps"]) == ([1, 2], 6)
