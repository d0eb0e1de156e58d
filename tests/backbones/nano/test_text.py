from hypothesis import given
from hypothesis import strategies as st

from anchorfold.backbones.nano.text import (
    CHARACTERS,
    SPELLING_FEATURES,
    fold_character,
    fold_text,
    spelling_features,
    split_words,
)


def test_accents_and_ligatures_fold():
    assert fold_text("Größe Ærø naïve ﬁle") == "grosse aero naive file"
    assert fold_character("É") == "e"
    assert fold_character("ﬁ") == "fi"
    assert fold_character("Ж") == "?"
    assert fold_character(" ") == fold_character("\n") == ""


def test_words():
    assert split_words("What is Debian GNU/Linux? It's x86_64, v2.5!") == [
        "what", "is", "debian", "gnu", "linux", "it", "s", "x86", "64", "v2", "5",
    ]  # fmt: skip
    assert split_words("数据 ... ") == []


@given(st.text(max_size=40))
def test_any_text_folds_to_known_symbols(text):
    for word in split_words(text):
        assert set(word) <= set(CHARACTERS)
    assert all(set(fold_character(c)) <= set(CHARACTERS) for c in text)


@given(st.text("abcdefgh123", min_size=1, max_size=12))
def test_spelling_features_are_stable_and_within_the_table(word):
    features = spelling_features(word)
    assert features == spelling_features(word)
    assert features
    assert all(0 <= f < SPELLING_FEATURES for f in features)


def test_spelling_features_depend_on_letter_positions():
    def shared(a, b):
        x, y = set(spelling_features(a)), set(spelling_features(b))
        return len(x & y) / min(len(x), len(y))

    assert shared("drawer", "reward") < shared("united", "untied") < shared("region", "regions")
