"""Batch and Load in a real browser: a map that fills in, a click that chooses, a run played, a load served, sizes."""

import re
from pathlib import Path

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
ROOT = Path(__file__).resolve().parents[2]
MAP = "map-pair=toy&map-drafter=autoregressive&map-prompt=toy&map-rounds=4"
LOAD = "load-pair=toy&load-drafter=autoregressive&load-rate=8&load-seconds=2"


@pytest.fixture(scope="module")
def url(serve, embedded_home):
    return serve(ROOT / "app.py", {"SPECVIZ_HOME": str(embedded_home)})


def press(page, name):
    page.get_by_role("button", name=name).click(timeout=90000)


def narrow(page):
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_map_fills_in_a_click_chooses_and_the_run_is_played(page, url):
    page.goto(f"{url}/batch?{MAP}")
    press(page, "Measure the map")
    expect(page.get_by_role("button", name="Measure again")).to_be_visible(timeout=180000)
    chart = page.locator(".st-key-map-measured-chart")
    expect(chart.get_by_text("measured", exact=False).first).to_be_visible()
    # the middle of the map: nine values of K, six batches
    plot = chart.locator(".draglayer .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 2.5 / 9, box["y"] + box["height"] * 3.5 / 6)
    expect(page.get_by_role("heading", name="K = 2, batch 4")).to_be_visible(timeout=60000)
    press(page, "Play this run")
    expect(page.locator(".where")).to_have_text(re.compile(r"Round \d+ of \d+"), timeout=90000)
    expect(page.locator(".meta")).to_contain_text("pair toy", timeout=60000)
    expect(page.locator(".meta")).to_contain_text("K 2")


def test_a_load_is_served_and_the_counterexample_run(page, url):
    page.goto(f"{url}/load?{LOAD}")
    press(page, "Serve on this machine")
    expect(page.get_by_text("equals its text alone")).to_be_visible(timeout=240000)
    for key in ("served-frontier", "served-lengths", "served-times", "served-waste"):
        expect(page.locator(f".st-key-{key}-chart .main-svg").first).to_be_visible(timeout=60000)
    press(page, "Run the counterexample")
    expect(page.get_by_text("Share of token A, looks ahead")).to_be_visible(timeout=60000)
    assert "Traceback" not in page.locator("body").inner_text()


@pytest.mark.parametrize("path", [f"batch?{MAP}", f"load?{LOAD}"])
def test_nothing_is_wider_than_a_phone(new_page, url, path):
    page = new_page(390, 844)
    page.goto(f"{url}/{path}")
    expect(page.locator(".main-svg").first).to_be_visible(timeout=90000)
    assert narrow(page)
