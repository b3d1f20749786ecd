"""The accept rule in a real browser: bars and u moved by pointer and by keyboard, trials, phone, dark."""

import re
from pathlib import Path

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url(serve, tmp_path_factory):
    return serve(ROOT / "app.py", {"SPECVIZ_HOME": str(tmp_path_factory.mktemp("home"))}) + "/accept_rule"


def opened(page, url):
    page.set_default_timeout(90_000)  # a machine that does other things as well
    page.goto(url)
    expect(page.locator(".rule .words")).to_contain_text("Draft", timeout=90_000)
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()
    return page


def slider(page, name):
    return page.get_by_role("slider", name=name, exact=True)


def value(page, name):
    return float(slider(page, name).get_attribute("aria-valuenow"))


def drag(page, name, by):
    """Take a handle with the pointer and move it `by` pixels."""
    handle = slider(page, name)
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + by / 2, y, steps=4)
    page.mouse.move(x + by, y, steps=4)
    page.mouse.up()


def test_the_sentence_has_the_runs_own_arithmetic(page, url):
    opened(page, url)
    expect(page.locator(".words")).to_have_text(
        "Draft ·and: p = 0.159, q = 0.259. min(1, p/q) = 0.159 / 0.259 = 0.615. u = 0.675 is not below 0.615: "
        "rejected. The target draws from the leftover, where only ·sees is left."
    )


def test_dragging_u_flips_the_verdict(page, url):
    opened(page, url)
    expect(page.locator(".words")).to_contain_text("rejected")
    drag(page, "u, the uniform that decides", -200)
    expect(page.locator(".words")).to_contain_text("accepted")
    assert value(page, "u, the uniform that decides") < 0.6
    drag(page, "u, the uniform that decides", 300)
    expect(page.locator(".words")).to_contain_text("rejected")


def test_dragging_a_bar_moves_it_and_keeps_the_sum_at_one(page, url):
    opened(page, url)
    before = value(page, "p of ·and")
    drag(page, "p of ·and", 60)
    assert value(page, "p of ·and") > before + 0.1
    tokens = ("·the", "·cat", "·dog", "·sees", "·and", ".")
    assert sum(value(page, f"p of {t}") for t in tokens) == pytest.approx(1, abs=0.004)
    assert sum(value(page, f"q of {t}") for t in tokens) == pytest.approx(1, abs=0.004)


def test_everything_can_be_done_by_keyboard_alone(page, url):
    """Arrows, Page and Home/End move a value; Space chooses the draft; focus stays on the handle."""
    opened(page, url)
    u = slider(page, "u, the uniform that decides")
    u.focus()
    page.keyboard.press("Home")
    expect(page.locator(".words")).to_contain_text("accepted")
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowRight")
    assert value(page, "u, the uniform that decides") == pytest.approx(0.11)
    page.keyboard.press("Tab")
    page.locator(".pick").nth(3).focus()
    page.keyboard.press("Space")
    expect(page.locator(".words")).to_contain_text("Draft ·sees: p = 0.600")
    expect(page.get_by_role("radio", name="draft ·sees")).to_have_attribute("aria-checked", "true")
    q = slider(page, "q of ·sees")
    q.focus()
    page.keyboard.press("End")
    assert value(page, "q of ·sees") == 1 and value(page, "q of ·and") == 0
    page.wait_for_timeout(1500)  # Python has heard of it, and the answer must not take the focus away
    expect(q).to_be_focused()


def test_ten_thousand_trials_grow_onto_p_and_a_move_clears_them(page, url):
    opened(page, url)
    page.get_by_role("button", name="Do it ten thousand times").click()
    expect(page.get_by_text("What came out 10,000 times")).to_be_visible(timeout=90000)
    expect(page.get_by_text("The counts agree with p.")).to_be_visible(timeout=30000)
    expect(page.locator("svg[data-el=came]")).to_have_attribute("aria-label", re.compile(r"·sees: 0\.\d+ where 0\.600"))
    slider(page, "p of ·cat").focus()
    page.keyboard.press("PageUp")
    expect(page.get_by_text("Nothing drawn yet")).to_be_visible(timeout=30000)
    expect(page.locator(".words")).to_contain_text("Draft ·and")


def test_back_gives_the_runs_numbers_again(page, url):
    opened(page, url)
    slider(page, "p of ·cat").focus()
    page.keyboard.press("PageUp")
    page.wait_for_timeout(800)
    page.get_by_role("button", name="Back to the run's numbers").click()
    expect(slider(page, "p of ·sees")).to_have_attribute("aria-valuenow", "0.600", timeout=30000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_downwards_and_reads_at_twelve_pixels(new_page, url, scheme):
    page = opened(new_page(390, 844, color_scheme=scheme), url)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    small = page.locator(".rule").evaluate("""rule => [...rule.querySelectorAll("*")]
        .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
        .map(e => parseFloat(getComputedStyle(e).fontSize)).filter(size => size < 12)""")
    assert small == []
    assert page.locator(".handle .hit").first.bounding_box()["width"] >= 34, "wide enough for a finger"
