"""The Bottleneck page in a real browser: first paint, measuring with progress and Stop, devices, keyboard, phone, dark.

`new_page` also proves that no request leaves this machine and that the console stays clean."""

import json
import re
from pathlib import Path

import pytest

from specviz.hardware import ceilings, facts
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.loader.precision import resolve_precision

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
ROOT = Path(__file__).resolve().parents[2]
H100 = "chip=H100+SXM&shape=Llama-3.1-8B&peak=bf16"
SECONDS = 1000


@pytest.fixture(scope="module")
def home(tmp_path_factory, embedded_home):
    """A home of its own whose models are the embedded ones, and whose ceilings are measured."""
    home = tmp_path_factory.mktemp("home")
    (home / "models").symlink_to(embedded_home / "models")
    precision = resolve_precision("auto", "cpu", find_pair(EMBEDDED).target)
    roofs = {
        "device": "cpu",
        "precision": precision,
        "bandwidth": 2e10,
        "flops": 1.4e11,
        "bandwidth_spread": [1.9e10, 2.1e10],
        "flops_spread": [1.3e11, 1.5e11],
        "measured_at": "2026-01-01T00:00:00+00:00",
    }
    key = ceilings._key("cpu", precision)
    (home / "machine.json").write_text(json.dumps({"version": facts.VERSION, "facts": {"ceilings": {key: roofs}}}))
    return home


@pytest.fixture(scope="module")
def url(serve, home):
    return serve(ROOT / "app.py", {"SPECVIZ_HOME": str(home)}) + "/bottleneck"


def opened(page, address):
    page.goto(address)
    expect(page.locator(".st-key-roofline .main-svg").first).to_be_visible(timeout=120 * SECONDS)
    expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible(timeout=120 * SECONDS)
    return page


def ticks(page):
    """The texts at both axes of the roofline, each once: a chart that is being replaced is there twice for a moment."""
    return set(page.locator(".st-key-roofline .xtick text, .st-key-roofline .ytick text").all_text_contents())


def test_first_paint_has_roofline_strip_briefing_and_ledger(page, url):
    opened(page, f"{url}?{H100}")
    expect(page.get_by_text("times the arithmetic of a plain step").first).to_be_visible()
    expect(page.get_by_text("Compute is busy for").first).to_be_visible()
    expect(page.get_by_text("a plain step keeps compute busy for")).to_be_visible()
    expect(page.get_by_role("heading", name="FLOPs go up: does waiting go down?")).to_be_visible(timeout=60 * SECONDS)
    assert "Traceback" not in page.locator("body").inner_text()


def test_axes_stand_still_while_a_slider_moves(page, url):
    opened(page, f"{url}?{H100}")
    before = ticks(page)
    page.get_by_role("slider", name="Batch (rows)").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_text(re.compile(r"Llama-3.1-8B, [2-6] rows"))).to_be_visible(timeout=60 * SECONDS)
    assert ticks(page) == before and before


def test_a_point_is_opened_by_keyboard_alone(page, url):
    opened(page, f"{url}?{H100}")
    box = page.get_by_role("combobox", name="Open a point")
    box.focus()
    page.keyboard.type("plain")
    page.keyboard.press("Enter")
    expect(box).to_have_value("plain (modelled)", timeout=30 * SECONDS)
    expect(page.locator(".st-key-arithmetic")).to_contain_text("attention projections")
    expect(page.locator(".st-key-arithmetic")).to_contain_text("Roof that binds")


def test_another_device_is_chosen_on_the_page(page, url):
    opened(page, f"{url}?{H100}")
    box = page.get_by_role("combobox", name="Device")
    box.focus()
    page.keyboard.type("RTX 4090")
    page.keyboard.press("Enter")
    expect(page.get_by_text("NVIDIA Ada GPU architecture whitepaper").first).to_be_visible(timeout=60 * SECONDS)
    assert "chip=RTX+4090" in page.url


def test_measuring_shows_progress_and_stop_ends_it(page, url):
    opened(page, url)
    page.get_by_role("button", name="Time passes of 1 to 32 positions").click()
    expect(page.get_by_role("progressbar").first).to_be_visible(timeout=60 * SECONDS)
    page.locator(".st-key-widths-stop button").click(timeout=60 * SECONDS)
    expect(page.get_by_text("Stopped: nothing was kept.")).to_be_visible(timeout=90 * SECONDS)
    expect(page.get_by_role("button", name="Time passes of 1 to 32 positions")).to_be_enabled()


def test_the_load_moves_while_something_decodes_and_stops_with_it(page, url):
    opened(page, url)
    page.get_by_role("button", name="Decode something").click()
    expect(page.get_by_text("Compute (measured)")).to_be_visible(timeout=120 * SECONDS)
    expect(page.get_by_text("MFU counts emitted tokens only").first).to_be_visible(timeout=120 * SECONDS)
    page.locator(".st-key-live-stop button").click()
    expect(page.get_by_text("Compute (measured)")).to_be_hidden(timeout=60 * SECONDS)
    expect(page.get_by_text("MFU counts emitted tokens only").first).to_be_visible(timeout=60 * SECONDS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_width_needs_no_sideways_scrolling(new_page, url, scheme):
    page = opened(new_page(width=390, height=844, color_scheme=scheme), f"{url}?{H100}")
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= 390
    ink = page.locator(".st-key-roofline .xtitle").first.evaluate("e => getComputedStyle(e).fill")
    assert (sum(map(int, re.findall(r"\d+", ink)[:3])) > 380) == (scheme == "dark"), "axis titles follow the theme"


def test_nonsense_is_a_sentence(page, url):
    page.goto(f"{url}?shape=GPT-9&chip=H900&rows=-1")
    expect(page.get_by_text("is neither a built-in shape")).to_be_visible(timeout=120 * SECONDS)
    assert "Traceback" not in page.locator("body").inner_text()
