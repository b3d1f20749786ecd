"""Makes docs/decode.png: the Decode page at 1280x800 on a recorded run, at the first rejected draft.

python docs/make_pictures.py    # needs Chromium, tests/requirements.txt and the embedded pair
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

import app_server  # noqa: E402 - found by the path above

from specviz.loader.local_copy import fetched  # noqa: E402
from specviz.loader.pairs import EMBEDDED, find_pair  # noqa: E402

PICTURE = ROOT / "docs" / "decode.png"
WIDTH, HEIGHT = 1280, 800
MOST_STEPS = 60
TIMEOUT = 120_000
"""Milliseconds."""


def main() -> int:
    """Start the app, take the picture, stop the app. Returns the exit code."""
    if fetched(find_pair(EMBEDDED).target) is None:
        print(f"Run python -m specviz fetch {EMBEDDED} first: the page would show the download.", file=sys.stderr)
        return 2
    if app_server.CHROMIUM is None:
        print("Install Chromium, or set SPECVIZ_CHROMIUM to its path.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        process, url = app_server.start(ROOT / "app.py", {}, Path(folder) / "log.txt")
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=app_server.CHROMIUM, args=app_server.ARGUMENTS)
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
                page.goto(url)
                to_first_rejection(page)
                page.screenshot(path=str(PICTURE))
                browser.close()
        finally:
            process.terminate()
            process.wait(timeout=20)
    print(PICTURE)
    return 0


def to_first_rejection(page: Page) -> None:
    """Step the player to the first rejected draft and scroll its top to the top of the window."""
    step = page.get_by_role("button", name="Next step", exact=True)
    step.wait_for(timeout=TIMEOUT)
    page.wait_for_function("!document.querySelector('[data-testid=stStatusWidget]')", timeout=TIMEOUT)
    rejected = page.get_by_text("is rejected.")
    for _ in range(MOST_STEPS):
        if rejected.count() and rejected.first.is_visible():
            break
        step.click()
        page.wait_for_timeout(300)
    else:
        raise SystemExit("The first recorded run has no rejected draft in its first rounds.")
    run = page.get_by_role("button", name="Run", exact=True)
    run.evaluate("button => button.scrollIntoView({ block: 'start' })")
    page.mouse.wheel(0, -70)  # the navigation covers the top of the window
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)


if __name__ == "__main__":
    sys.exit(main())
