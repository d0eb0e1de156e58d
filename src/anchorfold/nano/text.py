"""Text as nano sees it: lower-case ASCII letters and digits, accents folded, everything else a separator."""

from __future__ import annotations

import re
import unicodedata
import zlib

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SYMBOLS = ".,:;-/()%$+=@&#*\"'!?_<>[]|"
CHARACTERS = LETTERS + SYMBOLS

_SAME = {
    "‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-", "‐": "-", "‑": "-", "×": "x",
    "{": "(", "}": ")", "`": "'", "´": "'", "«": '"', "»": '"', "•": "*", "·": ".", "\\": "/", "~": "-", "∗": "*",
    "ß": "ss", "æ": "ae", "Æ": "ae", "œ": "oe", "Œ": "oe", "ø": "o", "Ø": "o", "đ": "d", "ł": "l", "Ł": "l", "ı": "i",
}  # fmt: skip
_WORD = re.compile(r"[a-z0-9]+")


def fold_text(text: str) -> str:
    """Lower case without accents: "Größe" -> "grosse", "ﬁle" -> "file"."""
    text = "".join(_SAME.get(c, c) for c in text)
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


def fold_character(character: str) -> str:
    """What a printed character is read as: symbols of CHARACTERS (two for a ligature), "?" for another
    script, "" for a space or a control character."""
    folded = fold_text(character)
    if not folded.strip() or ord(folded[0]) < 33 or folded[0] in "\ufffe\uffff\u200b\u00ad":
        return ""
    return "".join(c if c in CHARACTERS else "?" for c in folded)


def split_words(text: str) -> list[str]:
    """Words of a query, in order: runs of letters and digits after folding."""
    return _WORD.findall(fold_text(text))


def ngram_buckets(word: str, buckets: int) -> list[int]:
    """Hash buckets of a word's character 2-, 3- and 4-grams with its ends marked, and of the whole word."""
    marked = f"<{word}>"
    grams = {marked[i : i + n] for n in (2, 3, 4) for i in range(len(marked) - n + 1)} | {marked}
    return sorted({zlib.crc32(g.encode()) % buckets for g in grams})
