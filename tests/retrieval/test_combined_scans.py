"""Concurrent queries that are scored together."""

import threading
import time

import numpy as np
import pytest

from anchorfold.retrieval.combined_scans import MOST, CombinedScans
from anchorfold.retrieval.kernels import Tokens


class Scan:
    """Scores a query by the sum of its tokens; the first scan lasts until it is released."""

    def __init__(self):
        self.sizes, self.release, self.failing = [], threading.Event(), False

    def __call__(self, tokens):
        self.sizes.append(len(tokens.starts) - 1)
        assert self.release.wait(20)
        if self.failing and len(self.sizes) == 2:
            raise OSError("unreadable")
        sums = [tokens.values[a:b].sum() for a, b in zip(tokens.starts[:-1], tokens.starts[1:], strict=True)]
        return np.array(sums, np.float32)[:, None], np.zeros(len(sums), np.float32)


def run_concurrently(scan, count):
    """The scores of queries 0 to count - 1, or their errors; all but the first arrive during the first scan."""
    combined, answers = CombinedScans(), list[float | str | None]([None] * count)

    def search(i):
        tokens = Tokens(np.full((i % 3, 2), i, np.float32), np.array([0, i % 3]))
        try:
            answers[i] = float(combined.scores(tokens, scan)[0][0, 0])
        except OSError as error:
            answers[i] = str(error)

    threads = [threading.Thread(target=search, args=(i,)) for i in range(count)]
    threads[0].start()
    while not scan.sizes:
        time.sleep(0.001)
    for thread in threads[1:]:
        thread.start()
    while len(combined._waiting) < count - 1:
        time.sleep(0.001)
    scan.release.set()
    for thread in threads:
        thread.join(20)
    return answers


def test_queries_that_arrive_during_a_scan_are_scored_together():
    scan = Scan()
    assert run_concurrently(scan, MOST + 6) == [2.0 * i * (i % 3) for i in range(MOST + 6)]
    assert scan.sizes == [1, MOST, 5]


def test_an_error_is_raised_for_one_query_and_the_others_are_scored_again():
    scan = Scan()
    scan.failing = True
    answers = run_concurrently(scan, 5)
    assert answers.count("unreadable") == 1
    assert scan.sizes == [1, 4, 3]
    assert all(answer in ("unreadable", 2.0 * i * (i % 3)) for i, answer in enumerate(answers))


@pytest.mark.parametrize("count", [1, 2])
def test_a_query_without_others_is_scored_alone(count):
    scan = Scan()
    scan.release.set()
    combined = CombinedScans()
    for _ in range(count):
        combined.scores(Tokens(np.ones((1, 2), np.float32), np.array([0, 1])), scan)
    assert scan.sizes == [1] * count
