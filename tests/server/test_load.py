"""Twenty concurrent clients of a real server process receive the responses that a single one receives."""

from concurrent.futures import ThreadPoolExecutor

import httpx

CLIENTS, SEARCHES = 20, 10
QUERIES = ["night work", "parental leave", "dogs and horses", "IBAN", "pension fund", "bicycle lease"]


def search(client, address, number):
    answer = client.get(f"{address}api/search", params={"q": QUERIES[number % len(QUERIES)]})
    return answer.status_code, answer.json()


def test_twenty_parallel_clients(server):
    with httpx.Client() as client:
        alone = [search(client, server, number) for number in range(len(QUERIES))]
    assert {status for status, _ in alone} == {200}
    assert len({answer["results"][0]["id"] for _, answer in alone}) > 1

    def visit(first):
        with httpx.Client(timeout=60) as client:
            return [search(client, server, first + i) for i in range(SEARCHES)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(visit, range(CLIENTS)))
    for first, answers in enumerate(together):
        assert answers == [alone[(first + i) % len(QUERIES)] for i in range(SEARCHES)]
