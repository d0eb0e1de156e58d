"""Text of synthetic posters and slides: titles, headings, labels, sentences, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from training.nano.synthetic_text import sample_word

COMPOUND_SHARE = 0.06  # share of words that are compounds, like identifiers in programs
WORDS_PER_BLEND = 4  # words of the vocabulary per invented word
JOINERS = ("of", "in", "and", "for", "by", "with", "the", "a", "to", "on", "from", "is", "are", "at", "per")
TITLES = (
    "{0} and {1}",
    "The {0} of {2}",
    "{0} in {2}",
    "How {0} changes {1}",
    "{2}: {0} {1}",
    "Why {0} needs {1}",
    "{0} {1}",
)
QUESTIONS = ("What is said about {}?", "Where is {} shown?", "{}", "How much {} is there?", "Which page explains {}?")


def insert_blends(words: Sequence[str], rng: random.Random) -> list[str]:
    """Insert invented words into the vocabulary: the first half of one word and the second half of another.

    Without them the model learns to guess known words instead of reading their letters.
    """
    mixed: list[str] = []
    for number, word in enumerate(words, 1):
        mixed.append(word)
        if number % WORDS_PER_BLEND == 0:
            first, second = rng.sample(words, 2)
            mixed.append(first[: (len(first) + 1) // 2] + second[len(second) // 2 :])
    return mixed


class TextGenerator:
    """Generates text for training from a vocabulary, with random words and compounds."""

    def __init__(self, rng: random.Random, vocabulary: Sequence[str]) -> None:
        self.rng, self.vocabulary = rng, list(vocabulary)

    def make_word(self) -> str:
        """Make a word."""
        if self.rng.random() < COMPOUND_SHARE:
            parts = self.rng.choices(self.vocabulary, k=self.rng.randint(2, 3))
            return "".join(parts) if self.rng.random() < 0.3 else parts[0] + "".join(p.title() for p in parts[1:])
        return sample_word(self.rng, self.vocabulary)

    def make_title(self) -> str:
        """Make a title."""
        return self.apply_case(" ".join(self.make_word() for _ in range(self.rng.randint(1, 5))))

    def make_heading(self) -> str:
        """Make a heading."""
        return self.apply_case(" ".join(self.make_word() for _ in range(self.rng.randint(1, 3))))

    def make_label(self) -> str:
        """Make a label."""
        return self.apply_case(" ".join(self.make_word() for _ in range(self.rng.choice([1, 1, 2]))))

    def make_sentence(self, length: int) -> str:
        """Make a sentence of `length` words."""
        words = [self.rng.choice(JOINERS) if self.rng.random() < 0.3 else self.make_word() for _ in range(length)]
        return " ".join(words)

    def make_number(self) -> str:
        """Make a number with a unit, a year, or a count."""
        rng = self.rng
        plain = f"{rng.randint(1, 999)}"
        return rng.choice(
            [
                f"{rng.randint(1, 99)}%",
                f"${plain}",
                plain,
                f"{rng.randint(1, 99)},{rng.randint(100, 999)}",
                f"{rng.randint(1, 99)}.{rng.randint(0, 9)}",
                f"{rng.randint(1950, 2040)}",
                f"{plain}x",
            ]
        )

    def apply_case(self, text: str) -> str:
        """Apply upper case, title case or none."""
        kind = self.rng.random()
        return text.upper() if kind < 0.3 else text.title() if kind < 0.6 else text


class Topic:
    """Words shared by the sheets of one topic: nouns and names that are not in the training vocabulary.

    No single word identifies a sheet within its topic. Half of the nouns have similar nouns in the topic, so that
    partly read words are not sufficient.
    """

    def __init__(self, rng: random.Random, unseen: Sequence[str], names: Sequence[str]) -> None:
        starts = rng.sample(range(len(unseen)), 10)
        near = [unseen[(start + i) % len(unseen)] for start in starts for i in range(4)]
        self.nouns = list(dict.fromkeys(near + rng.sample(unseen, 40)))
        self.names = rng.sample(names, 4)


class TopicTextGenerator(TextGenerator):
    """Generates the text of one evaluation sheet from a sample of its topic's words, and records its phrases."""

    def __init__(self, rng: random.Random, topic: Topic) -> None:
        super().__init__(rng, rng.sample(topic.nouns, 14))
        self.name = rng.choice(topic.names)
        self.phrases: list[str] = []
        nouns = rng.sample(self.vocabulary, 2)
        self.headline = self.rng.choice(TITLES).format(nouns[0], nouns[1], self.name)

    def make_word(self) -> str:
        """Make a word."""
        return self.rng.choice(self.vocabulary)

    def make_title(self) -> str:
        """Make a title."""
        return self.apply_case(self.headline)

    def make_heading(self) -> str:
        """Make a heading."""
        return self.record_phrase(" ".join(self.rng.sample(self.vocabulary, self.rng.randint(1, 2))))

    def make_label(self) -> str:
        """Make a label."""
        return self.record_phrase(" ".join(self.rng.sample(self.vocabulary, self.rng.choice([1, 1, 2]))))

    def record_phrase(self, text: str) -> str:
        """Record a phrase for the questions and return it in random case."""
        self.phrases.append(text)
        return self.apply_case(text)

    def make_questions(self, printed: set[str]) -> dict[str, str]:
        """Make one question about the title and one about three other words, all of them `printed`."""
        title = [w for w in self.headline.lower().replace(":", "").split() if w in printed]
        below = [w for w in dict.fromkeys(" ".join(self.phrases).split()) if w in printed and w not in title]
        subjects = {"title": " ".join(title)} if len(set(title) & {*self.vocabulary, self.name.lower()}) > 1 else {}
        if len(below) > 2:
            first, second, third = self.rng.sample(below, 3)
            subjects["detail"] = f"{first} {second} and {third}"
        return {kind: self.rng.choice(QUESTIONS).format(text) for kind, text in subjects.items()}


def load_unseen_words(listing: Path, vocabulary: set[str]) -> tuple[list[str], list[str]]:
    """Load nouns and names of a word list (Debian: wamerican) that are not in the `vocabulary`."""
    if not listing.is_file():
        raise SystemExit(f"cannot read word list {listing}: no such file. Install wamerican or name one with --words.")
    words = [w for w in listing.read_text("utf-8").split() if w.isascii() and w.isalpha() and 5 <= len(w) <= 11]
    fresh = [w for w in words if w.lower() not in vocabulary and not w.endswith("s")]
    return [w for w in fresh if w.islower()], [w for w in fresh if w.istitle()]
