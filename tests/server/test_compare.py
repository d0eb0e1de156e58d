"""Several browser tabs compare methods on the same model at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from anchorfold.server.app import create_app

TABS, REQUESTS = 3, 6


@pytest.fixture(scope="module")
def client(service):
    return TestClient(create_app(service), base_url="http://localhost")


@pytest.mark.slow
def test_tabs_are_independent(client):
    hits = client.get("/api/search", params={"q": "night work supplement", "top_k": 2}).json()["results"]
    methods = {"method": ["anchorfold:0.1", "sap:0.1"]}

    def compare(number):
        answer = client.get(f"/api/pages/{hits[number % 2]['id']}/compare", params={"q": "night work", **methods})
        return answer.status_code, answer.json()

    alone = [compare(i) for i in range(2)]
    assert {status for status, _ in alone} == {200}
    with ThreadPoolExecutor(TABS) as pool:
        together = list(pool.map(compare, range(REQUESTS)))
    assert [status for status, _ in together] == [200] * REQUESTS
    for number, (_, answer) in enumerate(together):
        for compared, expected in zip(answer, alone[number % 2][1], strict=True):
            assert compared["score"] == pytest.approx(expected["score"], abs=1e-3)
            assert compared["retention"] == pytest.approx(expected["retention"], abs=0.05)
