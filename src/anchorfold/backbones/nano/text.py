"""Text normalisation: lower-case ASCII letters and digits, accents removed, everything else a separator."""

from __future__ import annotations

import re
import unicodedata

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SYMBOLS = ".,:;-/()%$+=@&#*\"'!?_<>[]|"
CHARACTERS = LETTERS + SYMBOLS

_EQUIVALENTS = {
    "‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-", "‐": "-", "‑": "-", "×": "x",
    "{": "(", "}": ")", "`": "'", "´": "'", "«": '"', "»": '"', "•": "*", "·": ".", "\\": "/", "~": "-", "∗": "*",
    "ß": "ss", "æ": "ae", "Æ": "ae", "œ": "oe", "Œ": "oe", "ø": "o", "Ø": "o", "đ": "d", "ł": "l", "Ł": "l", "ı": "i",
}  # fmt: skip
_WORD = re.compile(r"[a-z0-9]+")

LEVELS = 5
REGIONS = LEVELS * (LEVELS + 1) // 2
SPELLING_FEATURES = len(LETTERS) * REGIONS + len(LETTERS) ** 2


def fold_text(text: str) -> str:
    """Convert to lower case without accents: "Größe" -> "grosse", "ﬁle" -> "file"."""
    text = "".join(_EQUIVALENTS.get(c, c) for c in text)
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


def fold_character(character: str) -> str:
    """Convert a printed character to symbols of `CHARACTERS`.

    Returns:
        One symbol, two for a ligature, "?" for another script, "" for a space or a control character.
    """
    folded = fold_text(character)
    if not folded.strip() or ord(folded[0]) < 33 or folded[0] in "\ufffe\uffff\u200b\u00ad":
        return ""
    return "".join(c if c in CHARACTERS else "?" for c in folded)


def split_words(text: str) -> list[str]:
    """Split a text into normalised words: runs of letters and digits."""
    return _WORD.findall(fold_text(text))


def spelling_features(word: str) -> list[int]:
    """List the spelling features of a word, as numbers below `SPELLING_FEATURES`.

    A spatial pyramid of letters (which letters occur in the word, in each half, each third, ..., each fifth) and the
    pairs of adjacent letters. The page encoder can see each feature, and unknown words have them too.
    """
    n = len(word)
    features = set()
    for i, letter in enumerate(word):
        code, first = LETTERS.index(letter), 0
        for level in range(1, LEVELS + 1):
            for region in range(level):
                # A letter belongs to a region if at least half of it is inside.
                inside = min((i + 1) / n, (region + 1) / level) - max(i / n, region / level)
                if inside >= 0.5 / n - 1e-9:
                    features.add(code * REGIONS + first + region)
            first += level
        if i + 1 < n:
            features.add(len(LETTERS) * REGIONS + code * len(LETTERS) + LETTERS.index(word[i + 1]))
    return sorted(features)
