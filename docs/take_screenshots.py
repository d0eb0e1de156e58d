"""The README's pictures of the search page: `python docs/take_screenshots.py` after `make demo`, with chromium."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
INDEX = HERE.parent / "anchorfold-demo" / "sample-0.2.index"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    run = [sys.executable, "-m", "anchorfold"]
    question = "marine diesel and electricity costs"
    subprocess.run([*run, "explain", str(INDEX), question, "--to", str(HERE / "why.png")], check=True)
    server = subprocess.Popen(
        [*run, "serve", str(INDEX), "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = re.search(r"http://\S+", server.stdout.readline())
    assert address is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        dark = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="dark")
        dark.goto(f"{address.group()}?q=cups+of+coffee+and+cinnamon+buns")
        dark.wait_for_selector(".hit")
        dark.wait_for_timeout(1500)
        dark.screenshot(path=HERE / "search-dark.png")
        light = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        light.goto(f"{address.group()}?q={question.replace(' ', '+')}")
        light.locator(".hit").first.click()
        light.wait_for_selector("#words button")
        light.wait_for_timeout(1500)
        light.screenshot(path=HERE / "search-page.png")
        light.click("#compare")
        light.wait_for_selector("figcaption")
        light.wait_for_timeout(2500)
        light.screenshot(path=HERE / "search-compare.png")
        by_both(browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light"), address.group())
        browser.close()
    server.terminate()


def by_both(page: Page, address: str) -> None:
    """Hits by looks and words, and the page with its words framed."""
    page.goto(f"{address}?q=Per+Aasen,+vice+chair")
    page.locator("#mode label", has_text="Both").click()
    page.wait_for_selector(".hit mark")
    page.wait_for_timeout(1500)
    page.screenshot(path=HERE / "search-text.png")
    page.locator(".hit").first.click()
    page.wait_for_selector("#words button")
    page.wait_for_timeout(3000)
    page.screenshot(path=HERE / "search-words.png")


if __name__ == "__main__":
    main()
