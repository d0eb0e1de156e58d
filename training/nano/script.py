"""What posters and slides say: invented titles, headings, labels, sentences; and questions about what is printed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from training.nano.synth import random_word

NAMES = 0.06  # of the words in training are several run together, as names in programs are
KNOWN = 4  # words of the vocabulary to one that is invented
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


def with_blends(words: Sequence[str], rng: random.Random) -> list[str]:
    """The vocabulary with invented words in between: the first half of one word and the second half of another.

    Whoever only ever sees words that he knows learns to guess them; names must be spelt.
    """
    mixed: list[str] = []
    for number, word in enumerate(words, 1):
        mixed.append(word)
        if number % KNOWN == 0:
            first, second = rng.sample(words, 2)
            mixed.append(first[: (len(first) + 1) // 2] + second[len(second) // 2 :])
    return mixed


class Script:
    """Training: words as `synth.random_word` draws them, and names of many parts."""

    def __init__(self, rng: random.Random, vocabulary: Sequence[str]) -> None:
        self.rng, self.vocabulary = rng, list(vocabulary)

    def word(self) -> str:
        if self.rng.random() < NAMES:
            parts = self.rng.choices(self.vocabulary, k=self.rng.randint(2, 3))
            return "".join(parts) if self.rng.random() < 0.3 else parts[0] + "".join(p.title() for p in parts[1:])
        return random_word(self.rng, self.vocabulary)

    def title(self) -> str:
        return self.case(" ".join(self.word() for _ in range(self.rng.randint(1, 5))))

    def heading(self) -> str:
        return self.case(" ".join(self.word() for _ in range(self.rng.randint(1, 3))))

    def label(self) -> str:
        return self.case(" ".join(self.word() for _ in range(self.rng.choice([1, 1, 2]))))

    def sentence(self, length: int) -> str:
        words = [self.rng.choice(JOINERS) if self.rng.random() < 0.3 else self.word() for _ in range(length)]
        return " ".join(words)

    def number(self) -> str:
        """A figure with its unit, a year, or a count."""
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

    def case(self, text: str) -> str:
        kind = self.rng.random()
        return text.upper() if kind < 0.3 else text.title() if kind < 0.6 else text


class Topic:
    """Words that the sheets of one topic share: nouns and names that training never drew.

    No single word tells a sheet from the others of its topic, and half of the nouns have neighbours of the dictionary
    among them, so that half-read words go wrong.
    """

    def __init__(self, rng: random.Random, unseen: Sequence[str], names: Sequence[str]) -> None:
        starts = rng.sample(range(len(unseen)), 10)
        near = [unseen[(start + i) % len(unseen)] for start in starts for i in range(4)]
        self.nouns = list(dict.fromkeys(near + rng.sample(unseen, 40)))
        self.names = rng.sample(names, 4)


class TopicScript(Script):
    """Measuring: a sheet that says a sixth of its topic's words. It keeps what it said."""

    def __init__(self, rng: random.Random, topic: Topic) -> None:
        super().__init__(rng, rng.sample(topic.nouns, 14))
        self.name = rng.choice(topic.names)
        self.phrases: list[str] = []
        nouns = rng.sample(self.vocabulary, 2)
        self.headline = self.rng.choice(TITLES).format(nouns[0], nouns[1], self.name)

    def word(self) -> str:
        return self.rng.choice(self.vocabulary)

    def title(self) -> str:
        return self.case(self.headline)

    def heading(self) -> str:
        return self.say(" ".join(self.rng.sample(self.vocabulary, self.rng.randint(1, 2))))

    def label(self) -> str:
        return self.say(" ".join(self.rng.sample(self.vocabulary, self.rng.choice([1, 1, 2]))))

    def say(self, text: str) -> str:
        self.phrases.append(text)
        return self.case(text)

    def questions(self, printed: set[str]) -> dict[str, str]:
        """One about the title and one about three words that stand below, all of them `printed`."""
        title = [w for w in self.headline.lower().replace(":", "").split() if w in printed]
        below = [w for w in dict.fromkeys(" ".join(self.phrases).split()) if w in printed and w not in title]
        ask = {"title": " ".join(title)} if len(set(title) & {*self.vocabulary, self.name.lower()}) > 1 else {}
        if len(below) > 2:
            first, second, third = self.rng.sample(below, 3)
            ask["detail"] = f"{first} {second} and {third}"
        return {kind: self.rng.choice(QUESTIONS).format(text) for kind, text in ask.items()}


def unseen_words(listing: Path, vocabulary: set[str]) -> tuple[list[str], list[str]]:
    """Nouns and names of a system's word list (Debian: wamerican) that are not in the `vocabulary`."""
    words = [w for w in listing.read_text("utf-8").split() if w.isascii() and w.isalpha() and 5 <= len(w) <= 11]
    fresh = [w for w in words if w.lower() not in vocabulary and not w.endswith("s")]
    return [w for w in fresh if w.islower()], [w for w in fresh if w.istitle()]
