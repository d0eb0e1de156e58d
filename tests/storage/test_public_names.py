"""Public names: unique, without absolute paths, and stable while a document exists."""

import pytest

from anchorfold.storage.records import public_name
from tests.storage.page_rows import make_store, page_row


@pytest.mark.parametrize(
    ("name", "taken", "expected"),
    [
        ("reports/a.pdf", set(), "reports/a.pdf"),
        ("reports/a.pdf", {"reports/a.pdf"}, "reports/a (2).pdf"),
        ("/home/me/x/a.pdf", set(), "a.pdf"),
        ("/home/me/x/a.pdf", {"a.pdf"}, "x/a.pdf"),
        ("/home/me/x/a.pdf", {"a.pdf", "x/a.pdf"}, "me/x/a.pdf"),
        ("/home/me/x/a.pdf", {"a.pdf", "x/a.pdf", "me/x/a.pdf"}, "a (2).pdf"),  # the first component is never shown
        ("/home/me/x/a.pdf", {"a.pdf", "x/a.pdf", "me/x/a.pdf", "a (2).pdf"}, "a (3).pdf"),
        ("../other/a.pdf", set(), "a.pdf"),
        ("../other/a.pdf", {"a.pdf"}, "a (2).pdf"),
        ("/a.pdf", set(), "a.pdf"),
        ("archive.tar.gz", {"archive.tar.gz"}, "archive.tar (2).gz"),
        ("re\N{COMBINING ACUTE ACCENT}sume.pdf", set(), "r\xe9sume.pdf"),
        ("re\N{COMBINING ACUTE ACCENT}sume.pdf", {"r\xe9sume.pdf"}, "r\xe9sume (2).pdf"),
        ("A.pdf", {"a.pdf"}, "A.pdf"),
        ("a.pdf.", {"a.pdf"}, "a.pdf."),
    ],
)
def test_as_much_of_a_path_is_shown_as_makes_it_unique(name, taken, expected):
    assert public_name(name, taken.__contains__) == expected


def test_a_free_number_is_found_with_few_look_ups():
    taken, checked = {"a.pdf"}, list[str]()

    def is_taken(name):
        checked.append(name)
        return name in taken

    for _ in range(500):
        checked.clear()
        name = public_name("../a.pdf", is_taken)
        assert name not in taken
        taken.add(name)
    assert name == "a (501).pdf"
    assert len(checked) < 25


def test_documents_of_one_name_are_distinguished_and_keep_their_names(tmp_path):
    sources = ["/home/me/x/a.pdf", "/home/me/y/a.pdf"]
    store = make_store(
        tmp_path / "my.index",
        [page_row(1, source=source, document=source) for source in sources],
        [page_row(1, source=sources[0], document=sources[0], digest="new", live=False)],
    )

    def names():
        return {name: path for path, name in store.names(public=True).items()}

    expected = {"a.pdf": sources[0], "y/a.pdf": sources[1]}
    assert names() == expected
    with store.writing():
        store.promote(sources[0], "new", 1, 1)
        store.touch(sources[1], 5, 5)
        store.set_metadata({sources[1]: {"n": 1}}, {"n": "integer"})
        store.move({sources[1]: "/elsewhere/b.pdf"})
        assert names() == {"a.pdf": sources[0], "y/a.pdf": "/elsewhere/b.pdf"}
        store.remove([sources[0]])
        assert names() == {"y/a.pdf": "/elsewhere/b.pdf"}
        store.append([page_row(1, source=sources[0], document=sources[0])])
    assert store.public_documents() == {"a.pdf": 1, "y/a.pdf": 1}
    assert names()["a.pdf"] == sources[0]


def test_pages_are_identified_without_paths(tmp_path):
    store = make_store(
        tmp_path / "my.index", [page_row(1, source="/x/a.pdf", document="/x/a.pdf"), page_row(2, source="/x/a.pdf")]
    )
    identity = store.public_page_id("a.pdf", 2)
    assert identity == "1-2"
    assert store.find_page(identity) == ("/x/a.pdf", "a.pdf", 2)
    for wrong in ("1-3", "2-1", "", "1", "-", "1-", "a-b", "1-2-3", "9" * 30 + "-1", "²-1"):
        assert store.find_page(wrong) is None
    assert store.public_page_id("b.pdf", 1) is None
