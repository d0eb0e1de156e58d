"""Extensions of other packages are found by their entry points, which are read once per path."""

from importlib import metadata

import pytest

from anchorfold._registry import Registry
from anchorfold.compressors import COMPRESSORS
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.methods import choose_methods


@pytest.fixture
def registry():
    return Registry("anchorfold.tests", "number", {"one": "math:tau"})


def offer(folder, name, target):
    """What pip leaves of a package with one entry point."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[anchorfold.tests]\n{name} = {target}\n")


def test_a_package_on_the_path_is_found(registry, tmp_path, monkeypatch):
    assert registry.names() == ["one"]
    offer(tmp_path, "two", "math:e")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.names() == ["one", "two"]
    assert "two" in registry
    assert registry["two"] == pytest.approx(2.71828, abs=1e-4)


def test_packages_are_read_once(registry, tmp_path, monkeypatch):
    reads = []
    read = metadata.entry_points

    def counted(**selection):
        reads.append(selection)
        return read(**selection)

    monkeypatch.setattr(metadata, "entry_points", counted)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(3):
        registry.names()
    assert len(reads) == 1


def test_an_extension_that_cannot_be_imported(registry, tmp_path, monkeypatch):
    offer(tmp_path, "broken", "no_such_module:x")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AnchorFoldError, match=r"the number 'broken' of the package broken cannot be imported .*update"):
        registry["broken"]
    with pytest.raises(AnchorFoldError, match="there is no number called 'three': choose one of broken, one"):
        registry["three"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kmeans", "semantic-clustering"), ("k-means", "semantic-clustering"), ("K_Means", "semantic-clustering"),
        ("pooling", "1d-pooling"), ("semantic-clusterin", "semantic-clustering"), ("anchor-fold", "anchorfold"),
        ("AnchorFold", "anchorfold"),
    ],
)  # fmt: skip
def test_a_wrong_name_gets_a_suggestion(written, meant):
    for wrong in (lambda: COMPRESSORS[written], lambda: choose_methods(written, [0.1])):
        with pytest.raises(AnchorFoldError, match=f"{written}': did you mean '{meant}'\\? Choose one of 1d-"):
            wrong()


def test_no_suggestion_for_a_dissimilar_name():
    with pytest.raises(AnchorFoldError, match="called 'zzz': choose one of 1d-pooling"):
        COMPRESSORS["zzz"]


def test_names_are_registered_once(registry):
    registry.register("two", 2.0)
    with pytest.raises(ValueError, match="a number called 'two' is registered already"):
        registry.register("two", 3.0)
    registry.unregister("two")
    assert "two" not in registry
