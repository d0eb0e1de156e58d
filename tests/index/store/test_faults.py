import errno
import os
import resource
from contextlib import suppress

import pytest

from anchorfold import AnchorFold, Index
from anchorfold.errors import DamagedError, DiskFullError, NotAnIndexError, StoreError
from anchorfold.index.store.faults import explained, storage_errors
from tests.number_reader import NumberReader, write_pdf


@pytest.fixture
def index(tmp_path):
    index = Index.create(tmp_path / "my.index", NumberReader(), AnchorFold(ratio=0.5))
    index.add(write_pdf(tmp_path / "a.pdf", [1, 2]))
    return index


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "x"), DiskFullError, "disk is full"),
        (RuntimeError("lance error: IO: No space left on device (os error 28)"), DiskFullError, "disk is full"),
        (RuntimeError("lance error: Too many open files (os error 24), /root/.cargo/x"), StoreError, "descriptors"),
        (OSError(errno.EMFILE, "x"), StoreError, "descriptors"),
        (RuntimeError("lance error: Input/output error (os error 5)"), StoreError, "input/output error"),
        (RuntimeError("lance error: Permission denied (os error 13)"), StoreError, "permission denied"),
        (RuntimeError("lance error: something that nobody has seen"), StoreError, "nobody has seen"),
        (RuntimeError("LanceError(IO): file size is too small, /root/.cargo/y"), DamagedError, "damaged"),
        (ValueError("file does not appear to be a Lance file"), DamagedError, "damaged"),
        (RuntimeError("lance error: Not found: data/1.lance"), DamagedError, "missing"),
    ],
)
def test_each_error_is_named_as_what_it_is(index, error, kind, words):
    fault = explained(error, index.path)
    assert type(fault) is kind
    assert words in str(fault)
    assert ("damaged" in str(fault)) == (kind is DamagedError)
    for advice in ("remove the folder", "delete", "cargo"):
        assert advice not in str(fault)


def test_a_panic_in_the_library_is_damage(tmp_path):
    class PanicException(BaseException):
        pass

    with pytest.raises(DamagedError), storage_errors(tmp_path):
        raise PanicException
    with pytest.raises(KeyboardInterrupt), storage_errors(tmp_path):
        raise KeyboardInterrupt


def test_an_index_without_descriptors_is_not_called_damaged(index, tmp_path):
    other = Index.open(index.path, NumberReader())
    other.info()  # what it imports is imported by now: modules need descriptors too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for attempt in (other.info, lambda: other.page("a.pdf", 1), lambda: other.search("page 1"),
                        lambda: other.add(tmp_path), lambda: Index.open(index.path)):  # fmt: skip
            with pytest.raises(StoreError, match="descriptors"):
                attempt()
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert other.info().pages == 2
    assert other.search("page 2", top=1)[0].page == 2


def test_an_index_that_was_moved_while_open_says_so_and_leaves_nothing_behind(index, tmp_path):
    index.search("page 1")
    index.path.rename(tmp_path / "elsewhere")
    for attempt in (index.info, lambda: index.page("a.pdf", 1), lambda: index.search("page 1"),
                    lambda: index.add(tmp_path), lambda: index.remove("a.pdf")):  # fmt: skip
        with pytest.raises(NotAnIndexError, match="moved or removed"):
            attempt()
    assert not index.path.exists()
    assert Index.open(tmp_path / "elsewhere", NumberReader()).info().pages == 2
