"""Take the screenshots of the search page: `python docs/take_screenshots.py` after `make demo`; requires chromium."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).parent
INDEX = HERE.parent / "anchorfold-demo" / "sample-0.2.index"
TIMEOUT = 300_000  # milliseconds
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    run = [sys.executable, "-m", "anchorfold"]
    query = "marine diesel and electricity costs"
    subprocess.run([*run, "explain", str(INDEX), query, "-o", str(HERE / "why.png")], check=True)
    server = subprocess.Popen(
        [*run, "serve", str(INDEX), "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = re.search(r"http://\S+", server.stdout.readline())
    assert address is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        dark = open_page(browser, "dark")
        dark.goto(f"{address.group()}?q=cups+of+coffee+and+cinnamon+buns")
        dark.wait_for_selector(".hit")
        take(dark, "search-dark.png")
        light = open_page(browser, "light")
        light.goto(f"{address.group()}?q={query.replace(' ', '+')}")
        light.locator(".hit").first.click()
        light.wait_for_selector("#words button")
        take(light, "search-page.png")
        light.click("#compare")
        light.wait_for_selector("figcaption")
        take(light, "search-compare.png")
        hybrid_search(open_page(browser, "light"), address.group())
        browser.close()
    server.terminate()


def open_page(browser: Browser, scheme: Literal["dark", "light"]) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(TIMEOUT)
    return page


def take(page: Page, name: str) -> None:
    """Take a screenshot after all images and heatmaps are loaded."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1000)
    page.screenshot(path=HERE / name)


def hybrid_search(page: Page, address: str) -> None:
    """Take screenshots of hybrid results, and of a page with its matching words framed."""
    page.goto(f"{address}?q=Per+Aasen,+vice+chair")
    page.wait_for_selector(".hit mark")
    take(page, "search-text.png")
    with page.expect_response(re.compile("/words")):
        page.locator(".hit").first.click()
    page.wait_for_selector("#words button")
    take(page, "search-words.png")


if __name__ == "__main__":
    main()
