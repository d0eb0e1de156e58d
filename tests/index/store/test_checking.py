"""One flipped bit, anywhere: found by `check`, mended by `--repair`, and never a wrong answer or a traceback."""

import random
import shutil

import pytest
from anchorfold.index.store.table import PageTable

from anchorfold.errors import AnchorFoldError, DamagedError
from anchorfold.index.store import columns
from anchorfold.index.store.checking import check, repair_index
from anchorfold.index.store.snapshot import Snapshot
from tests.index.store.test_pages import row
from tests.number_reader import DIM, index_settings


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    table = PageTable.create(tmp_path_factory.mktemp("check") / "my.index", index_settings(bits=4))
    for number in range(3):
        source = f"/docs/{number}.pdf"
        table.append([row(p, source=source, document=source[1:], pages=3, thumbnail=b"tiny") for p in range(1, 4)])
    table.touch("/docs/1.pdf", 5, 6)
    return table.folder


@pytest.fixture
def index(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "my.index")


def everything(snapshot: Snapshot):
    """All that can be read of an index."""
    return sorted(
        (p.source, p.page, p.kept, p.version.size, p.vectors.tobytes(), p.thumbnail, p.problem or "", str(p.provenance))
        for p in snapshot.pages(live=False)
    )


def outcome(index):
    """All that is read, or that there is one sentence instead."""
    try:
        return PageTable.open(index).snapshot(everything)
    except AnchorFoldError as error:
        return "one sentence" if "\n" not in str(error) and "anchorfold check" in str(error) else repr(error)


def files(index):
    return sorted(path for path in index.rglob("*") if path.is_file() and path.suffix != ".lock")


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_a_healthy_index_is_whole(index):
    assert check(index) == []
    before = [path.read_bytes() for path in files(index)]
    assert repair_index(index) == []
    assert [path.read_bytes() for path in files(index)] == before


@pytest.mark.parametrize("number", range(5))
def test_a_flipped_bit_is_found_and_never_a_wrong_answer(index, number):
    expected = everything(PageTable.open(index))
    path = files(index)[number]
    rng = random.Random(number)
    size = 8 * path.stat().st_size
    for bit in {0, size - 1, *(rng.randrange(size) for _ in range(60))}:
        flip(path, bit)
        damages = check(index)
        assert damages, f"bit {bit} of {path.name}"
        # Some bits nothing depends on, such as those that fill up a column.
        assert outcome(index) in (expected, "one sentence")
        flip(path, bit)
    assert check(index) == []


@pytest.mark.parametrize("number", range(5))
def test_repair_drops_what_is_broken_and_no_more(index, number):
    expected = set(everything(PageTable.open(index)))
    path = files(index)[number]
    flip(path, 4 * path.stat().st_size)
    damages = repair_index(index)
    assert damages
    assert check(index) == []
    table = PageTable.open(index)
    left = everything(table)
    # What a line of the log that is lost had changed is as before.
    assert {page[:3] for page in left} <= {page[:3] for page in expected}
    if path.suffix == ".segment":
        assert set(left) <= expected
        assert len(left) in (6, 8, 9), "one block holds all vectors of so small a segment; a blob is a page's own"
    if path.suffix == ".segment" and len(left) < 9:
        (incomplete,) = [s for s in table.documents().values() if not s.complete]
        assert damages[0].documents == (incomplete.document,)
        table.append([row(p, source=f"/{incomplete.document}", document=incomplete.document, pages=3, thumbnail=b"tiny") for p in range(1, 4)])  # fmt: skip  # noqa: E501
        assert {page[:3] for page in everything(table)} == {page[:3] for page in expected}


@pytest.mark.parametrize(("column", "left"), [("codes", 4), ("thumbnail", 5), ("problem.length", 0)])
def test_repair_keeps_the_pages_that_are_whole(tmp_path, monkeypatch, column, left):
    monkeypatch.setattr(columns, "BLOCK", 4 * DIM * 6)  # six vectors: the first block has the first page and a bit more
    table = PageTable.create(tmp_path / "my.index", index_settings(bits=32))
    names = [f"{page % 2}.pdf" for page in range(1, 7)]
    table.append(
        [row(p, source=f"/{name}", document=name, pages=3, thumbnail=b"tiny") for p, name in enumerate(names, 1)]
    )
    expected = everything(table)
    (path,) = (table.folder / "segments").iterdir()
    flip(path, 8 * table.page("/1.pdf", 1).segment._described[column][2])
    damages = repair_index(table.folder)
    assert check(table.folder) == []
    after = everything(PageTable.open(table.folder))
    assert set(after) < set(expected)
    assert len(after) == left
    lost = {page[0] for page in expected if page not in after}
    assert {f"/{name}" for name in damages[0].documents} == lost


def test_a_missing_segment_is_found_and_names_its_documents(index):
    sorted((index / "segments").iterdir())[1].unlink()
    (damage,) = check(index)
    assert "missing" in damage.problem
    assert damage.documents == ("docs/1.pdf",)
    with pytest.raises(DamagedError, match="anchorfold check"):
        PageTable.open(index).snapshot(everything)
    repair_index(index)
    assert len(everything(PageTable.open(index))) == 6


def test_a_file_that_is_cut_short_is_found(index):
    for path in files(index):
        data = path.read_bytes()
        for length in (0, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:length])
            assert check(index), f"{path.name} with {length} bytes"
        path.write_bytes(data)


def test_a_message_names_the_documents_of_a_damaged_segment(index):
    path = sorted((index / "segments").iterdir())[2]
    data = path.read_bytes()
    table = PageTable.open(index)
    codes = table.page("/docs/2.pdf", 1).segment._described["codes"][2]
    flip(path, 8 * codes)
    with pytest.raises(DamagedError, match=r"00000003\.segment: its codes .* it holds pages of docs/2\.pdf"):
        PageTable.open(index).snapshot(everything)
    path.write_bytes(data)


def test_what_is_no_index_says_so(tmp_path):
    for work in (check, repair_index):
        with pytest.raises(AnchorFoldError, match="does not exist"):
            work(tmp_path / "nowhere")
