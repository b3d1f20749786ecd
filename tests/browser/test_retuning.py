"""The Retune page in a real browser: a real retuning of seconds to its end, Stop, prompts that do not do, a phone."""

import re
from pathlib import Path

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
ROOT = Path(__file__).resolve().parents[2]
WAIT = 300_000
PROMPTS = [
    f"Write a recipe for {dish}."
    for dish in (
        "tomato soup",
        "fried rice",
        "apple cake",
        "a Greek salad",
        "garlic bread",
        "onion tart",
        "rice pudding",
        "bean tacos",
    )
]
# the app itself, but for a training of a few seconds on answers of 16 tokens
SHORT = """
from specviz.ui import frame, retune_page


def begin(text, name, seconds, k):
    from specviz.training.retune import Retune, RetuneOrder

    lines = tuple(line for line in text.splitlines() if line.strip())
    return Retune(RetuneOrder(lines, name, 6.0, k, 16)).start()


retune_page._begin = begin
frame.show()
"""


@pytest.fixture(scope="module")
def url(serve, embedded_home, tmp_path_factory):
    """The app with short retunings, in a home of its own."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("app")
    (home / "models").symlink_to(embedded_home / "models")
    (folder / "pages").symlink_to(ROOT / "pages")
    (folder / "app.py").write_text(SHORT)
    return serve(folder / "app.py", {"SPECVIZ_HOME": str(home)}) + "/retune"


def opened(page, url, prompts=PROMPTS):
    page.set_default_timeout(WAIT)  # a machine that does other things as well
    page.goto(url)
    box = page.get_by_role("textbox", name="Your prompts, one a line")
    expect(box).to_be_visible(timeout=WAIT)
    box.fill("\n".join(prompts))
    box.press("Control+Enter")
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(timeout=WAIT)
    return page


def go(page):
    page.get_by_role("button", name="Retune", exact=True).click()


def wide(page):
    return page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")


def test_a_retuning_to_its_end_shows_what_it_changed(page, url):
    opened(page, url)
    go(page)
    expect(page.locator("[data-testid=stProgress]")).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("button", name="Stop")).to_be_enabled(timeout=WAIT)
    verdict = page.get_by_text(re.compile(r"per target pass before, .* on 2 held-out prompts .* Measured on this"))
    expect(verdict).to_be_visible(timeout=WAIT)
    chart = page.locator(".st-key-retuned-chart")
    expect(chart.locator(".js-plotly-plot .trace").first).to_be_visible(timeout=WAIT)
    for name in ("Tokens per target pass (measured)", "Tokens per second (measured)", "Calibration error (measured)"):
        expect(page.get_by_text(name)).to_be_visible(timeout=WAIT)
    expect(page.get_by_text("2 of 2 greedy texts equal plain decoding's")).to_be_visible(timeout=WAIT)
    chart.get_by_role("button", name="Numbers").click()
    expect(page.locator("[data-testid=stDataFrame]")).to_be_visible(timeout=WAIT)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled(timeout=WAIT)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(chart.locator(".js-plotly-plot .trace").first).to_be_visible(timeout=WAIT)
    assert wide(page) <= 390
    assert "Traceback" not in page.locator("body").inner_text()
    link = page.get_by_role("link", name="Decode with the retuned drafter")
    link.click()
    expect(page.get_by_role("button", name=re.compile("^Run"))).to_be_enabled(timeout=WAIT)
    assert "drafter=" in page.url and "folder=" in page.url


def test_stop_ends_it_and_keeps_nothing(page, url):
    opened(page, url)
    go(page)
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_enabled(timeout=WAIT)
    stop.click()
    expect(page.get_by_text("Stopped: nothing was kept.")).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("button", name="Retune", exact=True)).to_be_enabled(timeout=WAIT)


@pytest.mark.parametrize("prompts", [[], ["only one"], ["the same"] * 9])
def test_prompts_that_do_not_do_get_a_sentence(page, url, prompts):
    opened(page, url, prompts)
    go(page)
    expect(page.locator("[data-testid=stAlert]")).to_contain_text(
        re.compile("8 to 200 prompts|there twice"), timeout=WAIT
    )
    assert "Traceback" not in page.locator("body").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_form_without_sideways_scrolling(new_page, url, scheme):
    page = opened(new_page(390, 844, color_scheme=scheme), url)
    assert wide(page) <= 390
