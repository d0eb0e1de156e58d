"""Versions of a mapping that share what they have in common."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorfold.index.store.layered import FEWEST, Layered

patches = st.lists(st.dictionaries(st.integers(0, 40), st.one_of(st.none(), st.text(max_size=2)), max_size=30))


@given(st.dictionaries(st.integers(0, 40), st.text(max_size=2)), patches, st.booleans())
def test_every_version_is_the_dictionary_that_its_patches_make(
    content: dict[int, str], changes: list[dict[int, str | None]], read_between: bool
) -> None:
    version, expected = Layered(content), dict(content)
    versions = [(version, dict(expected))]
    for patch in changes:
        version = version.changed(patch)
        expected = {k: v for k, v in {**expected, **patch}.items() if v is not None}
        if read_between:
            assert dict(version) == expected
        versions.append((version, expected))
    for some, plain in versions:
        assert len(some) == len(plain)
        assert all((key in some) == (key in plain) and some.get(key) == plain.get(key) for key in range(41))
        assert dict(some.items()) == dict(some) == plain
        assert sorted(some.values()) == sorted(plain.values())


def test_a_change_does_not_copy_what_stays() -> None:
    version = Layered(dict.fromkeys(range(100_000), "x"))
    base = version._layers[0]
    for number in range(FEWEST):
        version = version.changed({100_000 + number: "y"})
        assert version._layers[0] is base
    for number in range(400):
        version = version.changed({200_000 + number: "y"})
    assert len(version._layers[1]) <= 320, "changes are worked in from time to time"
    assert len(version) == 100_000 + FEWEST + 400
