"""The Drafters page in a real browser: lanes at first paint, playback, rounds and rejections opened, phone and dark."""

import re
from pathlib import Path

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
ROOT = Path(__file__).resolve().parents[2]
WAIT = 120_000


@pytest.fixture(scope="module")
def url(serve, tmp_path_factory):
    """Served with an empty home: nothing is fetched, nothing can be run."""
    return serve(ROOT / "app.py", {"SPECVIZ_HOME": str(tmp_path_factory.mktemp("bare"))})


def opened(page, url):
    page.goto(f"{url}/drafters")
    expect(page.locator("article.lane")).to_have_count(6, timeout=WAIT)
    expect(page.get_by_text("Where drafts are rejected")).to_be_visible(timeout=WAIT)
    return page


def clock(page):
    return page.locator(".lanes .clock")


def test_first_paint_has_every_lane_drawn_to_time(page, url):
    """Recorded lanes, labelled; each has its rounds as blocks, and its own time and tokens per second."""
    opened(page, url)
    expect(page.locator(".lanes .badge")).to_have_text("recorded")
    for lane in page.locator("article.lane").all():
        expect(lane.locator(".figures")).to_contain_text("tokens/s")
        assert lane.locator("rect[data-round]").count() > 10
    names = page.locator("article.lane .title b").all_inner_texts()
    assert names == ["plain", "ngram", "autoregressive", "parallel", "lookup+parallel", "hybrid"]


def test_the_clock_steps_plays_and_obeys_the_keyboard(page, url):
    opened(page, url)
    board = page.locator(".lanes")
    board.get_by_role("button", name="To the start").click()
    expect(clock(page)).to_have_text("0 ms")
    expect(page.locator("article.lane .figures").last).to_contain_text("pass 1 of")
    board.focus()
    page.keyboard.press("ArrowRight")
    expect(clock(page)).not_to_have_text("0 ms")
    page.keyboard.press("End")
    expect(page.locator("article.lane .figures").first).to_contain_text("tokens/s")
    board.get_by_label("Time on the common clock").fill("0.2")
    expect(clock(page)).to_have_text("200 ms")
    board.get_by_role("button", name="Play", exact=True).click()
    expect(clock(page)).not_to_have_text("200 ms")
    board.get_by_role("button", name="Pause").click()


def test_the_tokens_of_each_drafter_come_as_they_are_built(page, url):
    """Half way through a draft the serial drafter has some of its tokens, the parallel one none, the hybrid its rough
    guesses; at the end of its block the parallel one has them all."""
    opened(page, url)
    board = page.locator(".lanes")
    board.get_by_role("button", name="To the start").click()
    lane = {
        name: page.locator("article.lane", has=page.locator("b", has_text=re.compile(f"^{name}$")))
        for name in ("autoregressive", "parallel", "hybrid")
    }
    parallel, serial, rough = set(), set(), 0
    scrub = board.get_by_label("Time on the common clock")
    for step in range(1, 60):
        scrub.fill(str(step * 0.002))
        if "drafting" in lane["parallel"].locator(".round").inner_text():
            parallel.add(lane["parallel"].locator(".chip:not(.ghost)").count())
        if "drafting" in lane["autoregressive"].locator(".round").inner_text():
            serial.add(lane["autoregressive"].locator(".chip:not(.ghost)").count())
        rough += lane["hybrid"].locator(".chip.rough").count() > 0
    assert parallel <= {0}, "a parallel drafter's tokens appear together"
    assert len(serial) > 2, "a serial drafter's tokens appear one by one"
    assert rough > 0, "the hybrid's rough guesses are seen"


def test_a_round_of_a_lane_opens_in_the_player(page, url):
    opened(page, url)
    hybrid = page.locator("article.lane").last
    hybrid.locator('rect[data-round="4"]').last.click()
    expect(page.locator(".st-key-lanes-player .where")).to_contain_text("Round 5 of", timeout=WAIT)
    expect(page.locator(".st-key-lanes-player .meta")).to_contain_text("drafter hybrid")
    page.locator("article.lane").nth(3).get_by_role("button", name="Open round").click()
    expect(page.locator(".st-key-lanes-player .meta")).to_contain_text("drafter parallel", timeout=WAIT)


def test_the_player_shows_a_rough_guess_and_then_its_corrections(page, url):
    opened(page, url)
    player = page.locator(".st-key-lanes-player")
    expect(player.locator(".where")).to_contain_text("First guess")
    expect(player.locator(".words")).to_contain_text("rough guess of all")
    expect(player.get_by_text("first guess", exact=True).first).to_be_visible()
    player.get_by_role("button", name="Next step").click()
    expect(player.locator(".where")).to_contain_text("Correct")
    expect(player.locator(".strip").get_by_text("% sure").first).to_be_visible()


def test_a_rejection_opens_the_round_it_happened_in(page, url):
    opened(page, url)
    page.get_by_role("button", name="Open the first").click()
    told = page.get_by_text(re.compile(r"Rejection 1 of \d+:"))
    expect(told).to_be_visible(timeout=WAIT)
    number = re.search(r"round (\d+), position (\d+)", told.inner_text())
    where = page.locator(".st-key-fail-player .where")
    expect(where).to_contain_text(f"Round {number[1]} of", timeout=WAIT)
    expect(where).to_contain_text(f"Judge {number[2]} of")
    expect(page.locator(".st-key-fail-player").get_by_text("rejected").first).to_be_visible()
    page.get_by_role("button", name="Next rejection").click()
    expect(page.get_by_text(re.compile(r"Rejection 2 of \d+:"))).to_be_visible(timeout=WAIT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_sideways_scrolling(new_page, url, scheme):
    page = opened(new_page(390, 844, color_scheme=scheme), url)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    box = page.locator("article.lane svg").first.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 391


def test_with_reduced_motion_the_clock_hops_from_event_to_event(new_page, url):
    page = opened(new_page(reduced_motion="reduce"), url)
    board = page.locator(".lanes")
    board.get_by_role("button", name="To the start").click()
    board.get_by_role("button", name="Play", exact=True).click()
    expect(clock(page)).not_to_have_text("0 ms")
    first = clock(page).inner_text()
    page.wait_for_timeout(300)
    assert clock(page).inner_text() == first, "nothing glides between two events"
