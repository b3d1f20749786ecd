"""The Decode page in a real browser, served as a person serves it: first paint, live runs, Stop, tabs, sizes, files."""

import re
import time
from pathlib import Path

import psutil
import pytest

from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.trace import files as trace_files
from specviz.trace.records import Settings

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
ROOT = Path(__file__).resolve().parents[2]
TOY = "pair=toy&drafter=autoregressive&prompt=the+cat+sees&temperature=1&k=3"


@pytest.fixture(scope="module")
def url(serve, embedded_home):
    return serve(ROOT / "app.py", {"SPECVIZ_HOME": str(embedded_home)})


@pytest.fixture(scope="module")
def server(url):
    """The server's process."""
    port = url.rsplit(":", 1)[1]
    return next(p for p in psutil.process_iter(["cmdline"]) if f"--server.port={port}" in (p.info["cmdline"] or []))


def opened(page, address):
    page.goto(address)
    expect(page.locator(".where")).to_have_text(re.compile(r"Round \d+ of \d+"), timeout=60000)
    return page


def stop(page):
    """Stop of the run, not of a proof."""
    return page.locator(".st-key-stop-button button")


def run(page):
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("button", name="Run again")).to_be_visible(timeout=60000)


def finished(page, pair):
    """The session's own run has ended and its charts are there."""
    expect(page.locator(".meta")).to_contain_text(f"pair {pair}", timeout=60000)
    expect(stop(page)).to_be_disabled(timeout=60000)
    expect(page.get_by_text("tokens per target pass, where")).to_be_visible(timeout=60000)


def test_first_paint_shows_a_recorded_run_labelled_as_such(page, url):
    opened(page, url)
    expect(page.locator(".badge")).to_have_text("recorded")
    expect(page.locator(".meta")).to_contain_text("smollm2-135m")
    expect(page.locator(".meta")).to_contain_text(re.compile(r"\d{4}-\d\d-\d\d"))


def test_a_real_run_streams_and_stop_stops_it(page, url):
    """Rounds of the embedded model arrive while it runs; Stop ends it and what was decoded stays on screen."""
    opened(page, f"{url}/?length=512&drafter=ngram&k=2&prompt=Tell+a+very+long+story.")
    run(page)
    expect(page.locator(".badge")).to_have_text("live", timeout=90000)
    expect(page.locator(".where")).to_have_text(re.compile(r"Round ([2-9]|\d\d+) "), timeout=90000)
    stop(page).click()
    expect(stop(page)).to_be_disabled(timeout=30000)
    expect(page.get_by_role("button", name="Run again")).to_be_enabled()
    expect(page.locator(".where")).to_have_text(re.compile(r"Round \d+ of \d+"))
    expect(page.get_by_text("tokens per target pass, where")).to_be_visible(timeout=30000)
    assert "Traceback" not in page.locator("body").inner_text()


def test_closing_the_tab_ends_the_run(new_page, url, server):
    """The server is busy while a run is watched, and idle a few seconds after its tab has gone."""

    def busy(seconds: float) -> float:
        before = sum(server.cpu_times()[:2])
        time.sleep(seconds)
        return (sum(server.cpu_times()[:2]) - before) / seconds

    page = opened(new_page(), f"{url}/?length=512&drafter=ngram&k=0&prompt=Tell+a+very+long+story.")
    run(page)
    expect(page.locator(".badge")).to_have_text("live", timeout=90000)
    watched = busy(1.0)
    page.close()
    deadline = time.monotonic() + 40
    while (left := busy(1.0)) > 0.15 and time.monotonic() < deadline:
        pass
    assert watched > 0.2
    assert left <= 0.15


def test_two_tabs_at_once_do_not_disturb_each_other(new_page, url):
    """Each tab's text is the text of the same order run alone."""
    pages = {seed: opened(new_page(), f"{url}/?{TOY}&length=48&seed={seed}") for seed in (3, 4)}
    for page in pages.values():
        run(page)
    for seed, page in pages.items():
        settings = Settings(k=3, temperature=1.0, seed=seed, max_new_tokens=48)
        alone = Run(RunRequest("toy", "autoregressive", "the cat sees", settings)).execute().trace
        finished(page, "toy")
        page.locator(".player").focus()
        page.keyboard.press("End")
        shown = page.locator("p.text").inner_text().replace("·", " ")
        assert re.sub(r"\s+", "", shown) == re.sub(r"\s+", "", alone.texts[0])


def test_stepping_by_keyboard_goes_both_ways(page, url):
    opened(page, url)
    page.locator(".player").focus()
    page.keyboard.press("Home")
    first = page.locator(".words").text_content()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".words")).not_to_have_text(first)
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".words")).to_have_text(first)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_width_needs_no_sideways_scrolling(new_page, url, scheme):
    page = opened(new_page(width=390, height=844, color_scheme=scheme), url)
    wide = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
    assert wide <= 390
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()


def test_reduced_motion_plays_nothing_by_itself(new_page, url):
    page = opened(new_page(reduced_motion="reduce"), url)
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    words = page.locator(".words").text_content()
    page.wait_for_timeout(2500)
    assert page.locator(".words").text_content() == words


def test_a_finished_run_is_saved_as_a_trace_and_its_charts_as_files(page, url, tmp_path):
    opened(page, f"{url}/?{TOY}&length=16")
    run(page)
    finished(page, "toy")
    with page.expect_download() as got:
        page.get_by_role("button", name="Trace (JSON)").click()
    got.value.save_as(tmp_path / "trace.json")
    trace = trace_files.load(tmp_path / "trace.json")
    assert trace.pair == "toy"
    assert len(trace.token_ids()) == 16
    page.get_by_role("button", name="Export").first.click()
    with page.expect_download() as got:
        page.get_by_role("button", name="SVG", exact=True).last.click()
    got.value.save_as(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")


def test_a_k_and_a_pair_that_do_not_exist_are_sentences(page, url):
    opened(page, f"{url}/?k=99&pair=no-such-pair")
    expect(page.get_by_text("There is no pair called")).to_be_visible()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    assert "Traceback" not in page.locator("body").inner_text()
