"""The script that obtains the corpora of the README's table."""

import gzip
import io
import json
import sys
import tarfile

import pytest

from benchmarks.corpora import fetch


def package(member, content):
    """Return a Debian package with one file."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        information = tarfile.TarInfo(f"./{member}")
        information.size = len(content)
        archive.addfile(information, io.BytesIO(content))

    def entry(name, body):
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode()
        return header + body + b"\n" * (len(body) % 2)

    return b"!<arch>\n" + entry("debian-binary", b"2.0\n") + entry("data.tar.xz", data.getvalue())


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A corpus of one PDF that is compressed inside a package."""
    (tmp_path / "debs").mkdir()
    (tmp_path / "debs" / "a_1_all.deb").write_bytes(package("usr/a.pdf.gz", gzip.compress(b"a page")))
    source = {"url": "https://nowhere/a_1_all.deb", "member": "usr/a.pdf.gz", "sha256": fetch.digest(b"a page")}
    monkeypatch.setitem(fetch.FILES, "dev_debian", {"a.pdf": source})
    return tmp_path


def test_a_corpus_is_extracted_and_verified(corpus, monkeypatch):
    fetch.fetch_corpus("dev_debian", corpus / "c", corpus / "debs")
    assert (corpus / "c/pdfs/a.pdf").read_bytes() == b"a page"
    assert (corpus / "c/queries.jsonl").is_file()
    monkeypatch.setattr(fetch, "read_source", lambda *_: pytest.fail("downloaded again"))
    fetch.fetch_corpus("dev_debian", corpus / "c")


def test_other_content_is_refused(corpus, monkeypatch, capsys):
    fetch.FILES["dev_debian"]["a.pdf"]["sha256"] = "0"
    monkeypatch.setattr(sys, "argv", ["fetch", str(corpus / "c"), "dev_debian", "--debs", str(corpus / "debs")])
    with pytest.raises(SystemExit, match=r"dev_debian is incomplete: a\.pdf .* has another checksum"):
        fetch.main()
    assert not (corpus / "c/pdfs/a.pdf").exists()


def test_every_relevant_page_belongs_to_a_listed_file():
    for name, files in fetch.FILES.items():
        lines = (fetch.HERE / name / "queries.jsonl").read_text().splitlines()
        assert {file for line in lines for file, _ in json.loads(line)["relevant"]} <= files.keys()
        assert all(len(source["sha256"]) == 64 and source["url"].startswith("https://") for source in files.values())
