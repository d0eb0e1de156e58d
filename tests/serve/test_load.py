"""Twenty clients at once on a real server process."""

import os
import statistics
import threading
import time

import httpx

CLIENTS, EACH = 20, 10
WORDS = ["night work", "parental leave", "dogs and horses", "IBAN", "pension fund", "bicycle lease"]


def timed(client, address, number):
    began = time.perf_counter()
    answer = client.get(f"{address}api/search", params={"q": WORDS[number % len(WORDS)]})
    return answer.status_code, time.perf_counter() - began


def test_twenty_parallel_clients(server):
    with httpx.Client() as client:
        single = statistics.median(timed(client, server, i)[1] for i in range(30))
    seconds, problems = [], []

    def visit(number):
        with httpx.Client(timeout=60) as client:
            for i in range(EACH):
                status, took = timed(client, server, number + i)
                seconds.append(took)
                if status != 200:
                    problems.append(status)

    visitors = [threading.Thread(target=visit, args=(n,)) for n in range(CLIENTS)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert problems == []
    assert len(seconds) == CLIENTS * EACH
    waiting = CLIENTS / len(os.sched_getaffinity(0))  # visitors for each core
    assert statistics.median(seconds) <= 3 * single * waiting
