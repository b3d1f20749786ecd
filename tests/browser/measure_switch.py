"""Not a test: how long a page switch takes, from the click to the first chart drawn, with a finished run loaded.

    python tests/browser/measure_switch.py [--rounds 5] [--url URL] [--json]

Starts the app (or takes the one at --url), lets a run of the embedded model end on the Decode page, visits every page
once, and then as often as told: the median of those warm switches is what counts. $SPECVIZ_HOME holds the weights.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from app_server import ARGUMENTS, CHROMIUM, ROOT, start
from playwright.sync_api import expect, sync_playwright

RUN = "?go=1&drafter=hybrid&k=5&length=96"
PLOT = ".js-plotly-plot .trace, .js-plotly-plot .hm"
PAGES = {  # title -> (what holds its first chart, what is there once that is drawn)
    "Drafters": (".st-key-lanes", "rect[data-round]"),
    "Bottleneck": (".st-key-roofline-chart, .st-key-ledger-chart", PLOT),
    "Batch": (".st-key-map-modelled-chart, .st-key-map-measured-chart", PLOT),
    "Load": (".st-key-step-chart", PLOT),
    "Retune": (".st-key-retune-prompts", "textarea"),  # has no chart before a retuning: its form
    "Accept rule": (".st-key-accept_rule", "svg > *"),
    "Decode": (".st-key-player", ".where:not(:empty)"),
}
# Elements of the page before may linger until the new one has come: only what this page alone holds is looked for.
SWITCH = """async ([title, holder, drawn, limit]) => {
  const find = (root, selector) => {
    for (const found of root.querySelectorAll(selector)) if (found.getBoundingClientRect().width) return found;
    for (const host of root.querySelectorAll("*")) {
      const inside = host.shadowRoot && find(host.shadowRoot, selector);
      if (inside) return inside;
    }
    return null;
  };
  const link = [...document.querySelectorAll("a")].find(a => a.textContent.trim().endsWith(title));
  const from = performance.now();
  link.click();
  while (performance.now() - from < limit) {
    await new Promise(requestAnimationFrame);
    for (const place of document.querySelectorAll(holder))
      if (find(place, drawn)) return (performance.now() - from) / 1000;
  }
  return null;
}"""
IDLE = "[data-testid=stApp][data-test-script-state=notRunning]"


def measure(url: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each warm switch, by page."""
    found: dict[str, list[float]] = {title: [] for title in PAGES}
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(180_000)
        page.goto(f"{url}/{RUN}")
        expect(page.locator(".badge")).to_be_visible(timeout=300_000)  # recorded, then live
        expect(page.locator(".badge")).to_be_hidden(timeout=300_000)
        expect(page.locator(".st-key-stop-button button")).to_be_disabled(timeout=300_000)
        page.get_by_text("tokens per target pass, where").wait_for()
        for number in range(rounds + 1):
            for title, (holder, drawn) in PAGES.items():
                page.locator(IDLE).wait_for()
                page.wait_for_timeout(300)
                seconds = page.evaluate(SWITCH, [title, holder, drawn, 60_000])
                assert seconds is not None, f"{title} drew nothing"
                if number:  # the first visit is not warm
                    found[title].append(seconds)
        chromium.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", help="of an app that runs already")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, url = (None, arguments.url) if arguments.url else start(ROOT / "app.py", {}, Path(folder) / "log.txt")
        try:
            found = measure(url, arguments.rounds)
        finally:
            if process is not None:
                process.terminate()
                process.wait(timeout=20)
    load = os.getloadavg()[0]
    if arguments.json:
        print(json.dumps({"seconds": found, "load_average": load}))
        return
    for title, seconds in found.items():
        print(f"{title:12} {statistics.median(seconds):5.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    print(f"Load average {load:.1f} on {os.cpu_count()} cores.", file=sys.stderr)


if __name__ == "__main__":
    main()
