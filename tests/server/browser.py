"""A real Chromium for tests: Debian's, Chrome, or Playwright's own."""

import os
import shutil

import pytest
from playwright.sync_api import expect

expect.set_options(timeout=30_000)  # milliseconds; other tests may be at work beside the browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip


def launch(playwright):
    """Start a browser; without one skip with the reason, or fail where the environment asks for one."""
    path = next((p for n in NAMES if (p := shutil.which(n))), None)
    try:
        return playwright.chromium.launch(executable_path=path, args=FLAGS)
    except Exception as error:
        why = f"no browser can be started here ({str(error).splitlines()[0]}): install chromium to run these tests"
        if os.environ.get("ANCHORFOLD_REQUIRE_BROWSER"):
            pytest.fail(why)
        pytest.skip(why)
