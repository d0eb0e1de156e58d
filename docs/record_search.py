"""Record the search page: `python docs/record_search.py` after `make demo`; requires chromium. Writes search.webp."""

from __future__ import annotations

import io
import re
import subprocess
import sys

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from take_screenshots import FLAGS, HERE, INDEX, TIMEOUT

QUERY = "marine diesel and electricity costs"
SIZE = (960, 720)
MAX_BYTES = 1_000_000
# The page image in the viewer, or the first result.
LOADED = "(document.querySelector('dialog[open] #panels img') ?? document.querySelector('.hit img')).naturalWidth > 0"
STEP, PAUSE = 120, 1800  # milliseconds of a frame


class Recording:
    """Frames of a page with their durations in milliseconds."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.durations: list[int] = []

    def take(self, duration: int) -> None:
        """Append the present page."""
        self.frames.append(Image.open(io.BytesIO(self.page.screenshot())).convert("RGB"))
        self.durations.append(duration)

    def take_loaded(self) -> None:
        """Append the page after its images and heatmap are loaded."""
        while not self.page.evaluate(LOADED):
            self.page.wait_for_timeout(100)
        self.page.wait_for_timeout(1000)
        self.take(PAUSE)


def record(recording: Recording) -> None:
    """Search, open a page with its heatmap, choose a word, and show similar pages."""
    page = recording.page
    recording.take(STEP)
    for start in range(0, len(QUERY), 3):
        page.locator("#query").press_sequentially(QUERY[start : start + 3])
        recording.take(STEP)
    page.wait_for_selector(".hit")
    recording.take_loaded()
    page.locator(".hit").first.click()
    page.wait_for_selector("#words button")
    recording.take_loaded()
    page.locator("#words button").nth(2).click()
    recording.take_loaded()
    page.click("#similar")
    page.get_by_text("pages similar to").wait_for()
    recording.take_loaded()


def main() -> None:
    command = [sys.executable, "-m", "anchorfold", "serve", str(INDEX), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = re.search(r"http://\S+", server.stdout.readline())
    assert address is not None
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
            width, height = SIZE
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.set_default_timeout(TIMEOUT)
            page.goto(address.group())
            recording = Recording(page)
            record(recording)
            browser.close()
    finally:
        server.terminate()
    first, *rest = recording.frames
    path = HERE / "search.webp"
    first.save(path, save_all=True, append_images=rest, duration=recording.durations, loop=0, quality=60, method=4)
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}: lower the quality.")


if __name__ == "__main__":
    main()
