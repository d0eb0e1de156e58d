import os

import pytest

from anchorfold.documents.files import find_documents, matches, printable
from anchorfold.documents.listing import ignored_summary, list_documents
from anchorfold.errors import AnchorFoldError
from tests.number_reader import write_pdf


def find(*paths, exclude=None):
    skipped = []
    documents = list(find_documents(paths, lambda name, why: skipped.append((name, why)), exclude))
    return [d.name for d in documents], skipped


def test_folders_are_read_recursively_in_a_stable_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.pdf", "a.PDF", "sub/z.png", "sub/deeper/c.tiff", "notes.txt", ".hidden.pdf"):
        (tmp_path / "reports" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reports" / name).write_bytes(b"x")
    names, skipped = find("./reports")
    assert names == ["reports/a.PDF", "reports/b.pdf", "reports/sub/deeper/c.tiff", "reports/sub/z.png"]
    assert skipped == []
    assert find("reports/b.pdf", "reports")[0] == ["reports/b.pdf", *[n for n in names if n != "reports/b.pdf"]]


def test_a_file_that_is_no_document_is_refused_only_when_named(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    assert find(tmp_path) == ([], [])
    assert "not a kind" in find(tmp_path / "notes.txt")[1][0][1]


def test_files_of_unsupported_kinds_are_counted_by_extension(tmp_path):
    write_pdf(tmp_path / "docs/a.pdf", [1])
    for name in ("b.docx", "sub/c.DOCX", "sub/notes.md", "Makefile", ".hidden.txt", ".git/config.txt", "my.index/head"):
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text("x")
    (tmp_path / "docs/broken.txt").symlink_to(tmp_path / "nowhere")
    listing = list_documents([tmp_path / "docs", tmp_path / "docs/sub"], exclude=tmp_path / "docs/my.index")
    assert listing.ignored == {".docx": 2, "(no extension)": 1, ".md": 1}
    assert next(iter(listing.ignored)) == ".docx"
    assert (len(listing.documents), listing.skipped) == (1, ())


def test_folders_without_a_document_report_what_they_hold(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(AnchorFoldError, match=r"holds no document: .* Ignored 1 file: 1 \.txt\."):
        list_documents(tmp_path).require_some()


def test_the_summary_of_ignored_files_is_short():
    counts = {f".{letter}": 1000 - number for number, letter in enumerate("abcdefghijkl")}
    assert ignored_summary(counts).endswith("993 .h, 3,962 others.")


def test_what_is_not_there_is_one_line(tmp_path):
    (tmp_path / "gone.pdf").symlink_to(tmp_path / "nowhere.pdf")
    assert find(tmp_path / "missing")[1] == [(str(tmp_path / "missing"), "no such file or folder")]
    assert find(tmp_path)[1] == [(str(tmp_path / "gone.pdf"), "a broken link")]


def test_a_loop_of_links_ends(tmp_path):
    (tmp_path / "a").mkdir()
    write_pdf(tmp_path / "a" / "one.pdf", [1])
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    names, skipped = find(tmp_path)
    assert names == [str(tmp_path / "a" / "one.pdf")]
    assert skipped == [(str(tmp_path / "a" / "again"), "a link back to a folder that holds it")]


def test_the_index_itself_is_not_looked_into(tmp_path):
    write_pdf(tmp_path / "my.index" / "one.pdf", [1])
    write_pdf(tmp_path / "two.pdf", [1])
    assert find(tmp_path, exclude=tmp_path / "my.index")[0] == [str(tmp_path / "two.pdf")]


def test_unreadable_files_are_said(tmp_path, monkeypatch):
    path = write_pdf(tmp_path / "secret.pdf", [1])
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as the superuser, who may read everything
    assert find(tmp_path)[1] == [(str(path), "permission denied")]


def test_a_file_in_a_closed_folder_is_not_called_missing(tmp_path, monkeypatch):
    path, stat = write_pdf(tmp_path / "closed" / "one.pdf", [1]), os.stat

    def stat_outside(path_or_descriptor, **options):
        if str(path_or_descriptor).startswith(str(tmp_path / "closed/")):
            raise PermissionError(13, "Permission denied")
        return stat(path_or_descriptor, **options)

    monkeypatch.setattr(os, "stat", stat_outside)
    assert find(path)[1] == [(str(path), "permission denied")]


def test_names_that_are_no_unicode_and_very_long_ones(tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9 \xf0\x9f\x93\x84.pdf"
    with open(raw, "wb") as file:
        file.write(b"x")
    long = tmp_path / ("n" * 240 + ".pdf")
    long.write_bytes(b"x")
    names, _ = find(tmp_path)
    assert len(names) == 2
    for name in names:
        name.encode()
    assert printable(os.fsdecode(raw)).endswith("caf\\xe9 \N{PAGE FACING UP}.pdf")


def test_matching_by_name_path_folder_and_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document, source = "reports/old.pdf", str(tmp_path / "reports/old.pdf")
    for pattern in (
        "reports/old.pdf",
        "./reports/old.pdf",
        source,
        "reports",
        "reports/",
        "*.pdf",
        "old.pdf",
        "reports/*",
    ):
        assert matches(pattern, document, source), pattern
    for pattern in ("old", "report", "*.png", "other/old.pdf", "reports/ol"):
        assert not matches(pattern, document, source), pattern
