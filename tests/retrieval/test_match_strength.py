"""Queries without a good page are weak matches; queries of pages, also of scans, are not."""

import numpy as np
import pytest

from anchorfold.retrieval.match_strength import is_weak_match
from anchorfold.storage.hits import Hit

VECTORS = np.diag([0.5, 0.3, 0.2]).astype(np.float32)  # the highest possible score is 1


class Store:
    """A store of one page with a text, or of a scan."""

    def __init__(self, has_text=True, model="nano"):
        self.has_text = has_text
        self.settings = type("Settings", (), {"model": model})

    def text_scores(self, query, pages):
        return dict.fromkeys(pages, 0.0 if self.has_text else None)


def hits(*scores, text=None):
    return [Hit("a.pdf", 1, score, "/a.pdf", visual=score, text=text) for score in scores]


@pytest.mark.parametrize(
    ("store", "results", "expected"),
    [
        (Store(), hits(0.39, 0.2), True),
        (Store(), hits(0.2, 0.41), False),
        (Store(), hits(0.45, text=0.0), True),
        (Store(), hits(0.45, text=2.0), False),
        (Store(), hits(0.55, text=0.0), False),
        (Store(has_text=False), hits(0.45, text=0.0), False),
        (Store(has_text=False), hits(0.39, text=0.0), True),
        (Store(), [Hit("a.pdf", 1, 0.2, "/a.pdf", 0.2, 9.0, "Per Aasen, Vice chair", ((4, 9), (11, 15)))], False),
        (Store(), [Hit("a.pdf", 1, 0.2, "/a.pdf", 0.2, 9.0, "ten per cent, per year", ((4, 7), (14, 17)))], True),
        (Store(model="vidore/colpali-v1.3-hf"), hits(0.1), None),
        (Store(), [], None),
        (Store(), [Hit("a.pdf", 1, 2.0, "/a.pdf", text=2.0)], None),
    ],
)
def test_weak_matches(store, results, expected):
    assert is_weak_match(store, "query", VECTORS, results) is expected
