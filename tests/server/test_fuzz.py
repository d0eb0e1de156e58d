"""The API against its OpenAPI schema, on a real server process, with generated inputs."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from anchorfold.storage.hits import SearchRequest
from tests.server.test_api import QUERY

PATHS = ["/healthz", "/api/info", "/api/search", "/api/facets", *(f"/api/pages/{{page_id}}{r}" for r in ("", "/similar", "/original", "/thumbnail", "/image", "/evidence", "/words", "/compare"))]  # fmt: skip  # noqa: E501


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(f"{server}openapi.json")


def test_all_operations_of_the_schema_are_tested(schema):
    assert sorted(schema) == sorted(PATHS)


TRIED = [(path, known_page) for path in PATHS for known_page in ((False, True) if "{page_id}" in path else (False,))]


@pytest.mark.parametrize(("path", "known_page"), TRIED)
def test_responses_match_the_schema(schema, service, path, known_page):
    identity = service.search(SearchRequest([QUERY], top_k=1))[0][0]

    @given(case=schema[path]["GET"].as_strategy())
    @settings(
        max_examples=5 if "compare" in path else 20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    def check(case):
        if known_page:
            case.path_parameters = {"page_id": identity}
        case.query.pop("where", None)  # of all texts, hardly one is SQL
        case.call_and_validate()

    check()
