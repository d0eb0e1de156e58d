import os

import pytest

from anchorfold.documents.files import escape_path, matches
from anchorfold.documents.listing import ignored_summary, list_documents
from anchorfold.errors import AnchorFoldError
from tests.number_reader import write_pdf


def find(*paths, exclude=None):
    listing = list_documents(paths, exclude)
    return [d.name for d in listing.documents], list(listing.skipped)


def test_recursive_and_sorted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.pdf", "a.PDF", "sub/z.png", "sub/deeper/c.tiff", "notes.epub", ".hidden.pdf"):
        (tmp_path / "reports" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reports" / name).write_bytes(b"x")
    names, skipped = find("./reports")
    assert names == ["reports/a.PDF", "reports/b.pdf", "reports/sub/deeper/c.tiff", "reports/sub/z.png"]
    assert skipped == []
    assert find("reports/b.pdf", "reports")[0] == ["reports/b.pdf", *[n for n in names if n != "reports/b.pdf"]]


def test_unsupported_file_is_skipped_if_named(tmp_path):
    (tmp_path / "notes.epub").write_text("x")
    assert find(tmp_path) == ([], [])
    assert "unsupported format" in find(tmp_path / "notes.epub")[1][0][1]


def test_ignored_files_by_extension(tmp_path):
    write_pdf(tmp_path / "docs/a.pdf", [1])
    for name in (
        "b.epub",
        "sub/c.EPUB",
        "sub/notes.zip",
        "Makefile",
        ".hidden.txt",
        ".git/config.txt",
        "my.index/head",
    ):
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text("x")
    (tmp_path / "docs/broken.epub").symlink_to(tmp_path / "nowhere")
    listing = list_documents([tmp_path / "docs", tmp_path / "docs/sub"], exclude=tmp_path / "docs/my.index")
    assert listing.ignored == {".epub": 2, "(no extension)": 1, ".zip": 1}
    assert next(iter(listing.ignored)) == ".epub"
    assert (len(listing.documents), listing.skipped) == (1, ())


def test_no_documents(tmp_path):
    (tmp_path / "notes.epub").write_text("x")
    with pytest.raises(AnchorFoldError, match=r"no documents in .* Ignored 1 file: 1 \.epub\."):
        list_documents(tmp_path).require_documents()


def test_summary_of_ignored_files():
    counts = {f".{letter}": 1000 - number for number, letter in enumerate("abcdefghijkl")}
    assert ignored_summary(counts).endswith("993 .h, 3,962 others.")


def test_missing_files_and_broken_links(tmp_path):
    (tmp_path / "gone.pdf").symlink_to(tmp_path / "nowhere.pdf")
    assert find(tmp_path / "missing")[1] == [(str(tmp_path / "missing"), "no such file or folder")]
    assert find(tmp_path)[1] == [(str(tmp_path / "gone.pdf"), "broken link")]


def test_symlink_loop(tmp_path):
    (tmp_path / "a").mkdir()
    write_pdf(tmp_path / "a" / "one.pdf", [1])
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    names, skipped = find(tmp_path)
    assert names == [str(tmp_path / "a" / "one.pdf")]
    assert skipped == [(str(tmp_path / "a" / "again"), "link to a parent folder")]


def test_excluded_folder(tmp_path):
    write_pdf(tmp_path / "my.index" / "one.pdf", [1])
    write_pdf(tmp_path / "two.pdf", [1])
    assert find(tmp_path, exclude=tmp_path / "my.index")[0] == [str(tmp_path / "two.pdf")]


def test_permission_denied(tmp_path, monkeypatch):
    path = write_pdf(tmp_path / "secret.pdf", [1])
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as the superuser, who may read everything
    assert find(tmp_path)[1] == [(str(path), "permission denied")]


def test_permission_denied_for_parent_folder(tmp_path, monkeypatch):
    path, stat = write_pdf(tmp_path / "closed" / "one.pdf", [1]), os.stat

    def stat_outside(path_or_descriptor, **options):
        if str(path_or_descriptor).startswith(str(tmp_path / "closed/")):
            raise PermissionError(13, "Permission denied")
        return stat(path_or_descriptor, **options)

    monkeypatch.setattr(os, "stat", stat_outside)
    assert find(path)[1] == [(str(path), "permission denied")]


def test_non_unicode_and_long_names(tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9 \xf0\x9f\x93\x84.pdf"
    with open(raw, "wb") as file:
        file.write(b"x")
    long = tmp_path / ("n" * 240 + ".pdf")
    long.write_bytes(b"x")
    names, _ = find(tmp_path)
    assert len(names) == 2
    for name in names:
        name.encode()
    assert escape_path(os.fsdecode(raw)).endswith("caf\\xe9 \N{PAGE FACING UP}.pdf")


def test_match_by_name_path_folder_and_pattern(tmp_path, monkeypatch):
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
