"""Filters of the server: public names, error messages, facets, and checkboxes in a browser."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import expect, sync_playwright

from anchorfold.server.app import create_app
from tests.server.browser import launch

QUERY = "night work supplement"


@pytest.fixture(scope="module")
def client(service):
    return TestClient(create_app(service), base_url="http://localhost")


def documents(client, where):
    answer = client.get("/api/search", params={"q": QUERY, "where": where})
    assert answer.status_code == 200, answer.text
    return {result["document"] for result in answer.json()["results"]}


def test_a_search_with_a_filter(client):
    assert documents(client, "team = 'sales'") == {"forms.pdf"}
    assert documents(client, "year >= 2023 and page <= 2") == {"handbook.pdf"}
    assert documents(client, "year > 2023") == set()
    result = client.get("/api/search", params={"q": QUERY, "where": "signed"}).json()["results"][0]
    known = result["metadata"]
    assert (known["team"], known["signed"], known["folder"], known["kind"]) == ("sales", True, ".", "pdf")
    assert isinstance(known["modified"], str)


def test_names_are_the_public_ones(client, served_folder):
    """The index knows the documents by their absolute paths: a filter must not let them be guessed."""
    assert documents(client, "document = 'forms.pdf'") == {"forms.pdf"}
    assert documents(client, "folder = '.'") == {"forms.pdf", "handbook.pdf"}
    assert documents(client, f"document like '{served_folder}%' or folder like '/%' or document like '%/%'") == set()
    assert str(served_folder) not in client.get("/api/facets").text
    assert str(served_folder) not in client.get("/api/search", params={"q": QUERY}).text


@pytest.mark.parametrize("where", ["yaer = 1", "year >= 'x'", "", "team = 'a'; drop table x", "x" * 2001, "team"])
def test_an_invalid_filter_is_a_client_error(client, where, served_folder):
    answer = client.get("/api/search", params={"q": QUERY, "where": where})
    assert answer.status_code == (400 if len(where) <= 2000 else 422)
    assert str(served_folder) not in answer.text
    if len(where) <= 2000:
        assert isinstance(answer.json()["detail"], str)


def test_facets(client):
    answer = client.get("/api/facets").json()
    assert answer["columns"]["year"] == "integer"
    facets = {facet["column"]: facet for facet in answer["facets"]}
    assert facets["team"]["values"] == [{"value": "people", "documents": 1}, {"value": "sales", "documents": 1}]
    assert facets["signed"] == {
        "column": "signed", "type": "boolean", "values": [{"value": True, "documents": 1}], "missing": 1,
    }  # fmt: skip
    assert "document" not in facets
    assert "folder" not in facets  # all are in one


def test_boxes_in_the_browser(server):
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        page = chromium.new_page()
        problems = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server)
        page.fill("#query", QUERY)
        expect(page.locator(".hit")).to_have_count(11)
        page.locator("#filters summary").click()
        page.get_by_label("sales", exact=False).check()
        expect(page.locator(".hit .name").first).to_have_text("forms.pdf")
        expect(page.locator("#filters summary")).to_have_text("Filters (1)")
        sales = page.locator(".hit").count()
        assert 0 < sales < 11
        page.get_by_label("people", exact=False).check()  # values of a column are alternatives
        expect(page.locator(".hit")).to_have_count(11)
        page.get_by_role("group", name="signed").get_by_label("no value").check()  # columns add up
        expect(page.locator(".hit")).to_have_count(11 - sales)
        address = page.url
        chosen = json.loads(parse_qs(urlsplit(address).query)["filter"][0])
        assert chosen == {"team": ["sales", "people"], "signed": [None]}
        page.go_back()
        expect(page.locator(".hit")).to_have_count(11)
        expect(page.get_by_role("group", name="signed").get_by_label("no value")).not_to_be_checked()
        page.goto(address)  # as somebody else opens it
        expect(page.locator(".hit")).to_have_count(11 - sales)
        expect(page.get_by_label("people", exact=False)).to_be_checked()
        page.goto(f"{server}?q=night&filter=%5B%7B")  # not what the page wrote
        expect(page.locator(".hit")).to_have_count(11)
        page.goto(f'{server}?q=night&filter={{"gone":["it%27s"]}}')  # a column that is no more
        expect(page.locator("#status")).to_contain_text("there is no column 'gone'")
        assert [text for text in problems if "400" not in text] == []
        chromium.close()
