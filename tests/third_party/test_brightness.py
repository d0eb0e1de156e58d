"""An installed package extends anchorfold: its extensions appear in the command line and the search page."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.forked import completed
from tests.server.browser import launch

pytestmark = pytest.mark.slow
PACKAGE = Path(__file__).parent / "brightness"
TITLE = "Every other 0.05"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where the package is installed, as pip installs any."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "package"
    source.symlink_to(PACKAGE)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", folder, source], check=True)
    return folder


@pytest.fixture(scope="module")
def environment(site):
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "160",
    }


@pytest.fixture(scope="module")
def run(site, folder):
    def run(*arguments):
        process = completed(*arguments, cwd=folder, PYTHONPATH=str(site))
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    (folder / "shades.grey").write_text("200\n30\n120\n")
    return folder


@pytest.fixture(scope="module")
def index(run):
    run(
        "index",
        "shades.grey",
        "-o",
        "my.index",
        "--model",
        "brightness",
        "--method",
        "every-other",
        "--ratio",
        "0.25",
    )
    return "my.index"


def test_it_keeps_the_contracts(environment):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(PACKAGE / "contracts.py")]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stdout
    assert re.search(r"\d\d passed", process.stdout)


def test_the_compressor_is_listed(run):
    assert re.search(r"every-other\s+Every other\s+Tokens at equal distances", run("methods"))


def test_the_encoder_the_document_and_the_compressor_make_an_index(run, index):
    info = run("info", index)
    assert "every-other" in info
    assert "12 of 48" in info
    for query, best in (("dark", 2), ("bright", 1)):
        answer = json.loads(run("search", index, query, "--json"))
        assert answer["results"][0]["page"] == best


def test_the_export_target_writes_it(run, index, folder):
    assert "wrote 3 pages" in run("export", index, "--format", "csv")
    with open(folder / "my.csv", newline="") as file:
        lines = list(csv.reader(file))
    assert [line[:2] for line in lines] == [["shades.grey", str(page)] for page in (1, 2, 3)]
    assert {len(line) for line in lines} == {2 + 4 * 2}


def test_the_search_page_offers_the_compressor(environment, folder, index):
    command = [sys.executable, "-m", "anchorfold", "serve", index, "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
    try:
        address = re.search(r"http://\S+", process.stdout.readline()).group()
        methods = httpx.get(f"{address}api/info", timeout=30).json()["methods"]
        assert {"method": "every-other:0.05", "title": TITLE, "color": "#777777", "default": True} in methods
        with sync_playwright() as playwright:
            page = launch(playwright).new_page()
            page.goto(f"{address}?q=dark")
            page.locator(".hit").first.click()
            page.locator("#compare").click()
            page.get_by_label(TITLE).wait_for()
            page.locator("figcaption", has_text=TITLE).wait_for()
    finally:
        process.terminate()
        process.wait(20)
