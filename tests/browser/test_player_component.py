"""The player in a real browser, alone in a tiny Streamlit script, with traces that are made up."""

import importlib.util
import re
from pathlib import Path

import pytest

from specviz.trace import files as trace_files

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

_spec = importlib.util.spec_from_file_location("made_up_traces", Path(__file__).parents[1] / "unit" / "test_frames.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
made_up = _module.made_up

SCRIPT = """
import dataclasses, os, streamlit as st
from specviz.trace import files as trace
from specviz.ui.player_component import Seek, player

st.set_page_config(layout="wide")
whole = trace.load(os.environ["TRACE"])
live = "live" in st.query_params

@st.fragment(run_every=0.3 if live else None)
def show():
    run = whole
    if live:
        # the last rounds wait for a press: until then the run is live, however slow the browser is
        most = len(whole.rounds) if st.button("Go on") or st.session_state.get("on") else 3
        st.session_state.on = most > 3
        st.session_state.n = min(st.session_state.get("n", -1) + 1, most)
        run = dataclasses.replace(whole, rounds=whole.rounds[:st.session_state.n])
    seek = Seek("link", int(st.query_params["round"]), 0) if "round" in st.query_params else None
    head = player(run, key="player", run_id="one", streaming=live and len(run.rounds) < len(whole.rounds),
                  recorded=None if live else "on a made-up machine", meta=[("pair", "made-up")], seek=seek,
                  autoplay="auto" in st.query_params)
    st.text(f"python: row {head.row}, round {head.round}, frame {head.frame}")

show()
"""


@pytest.fixture(scope="module")
def url(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("player")
    path = trace_files.save(made_up(rows=2, rounds=6), folder / "trace.json")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return serve(script, {"TRACE": str(path)})


def opened(page, url):
    page.goto(url)
    expect(page.locator(".where")).to_have_text(re.compile("Round"), timeout=30000)
    return page


def words(page):
    return page.locator(".words").text_content()


def press(page, name):
    button = page.get_by_role("button", name=name, exact=True)
    expect(button).to_have_count(1, timeout=20000)  # while the page is drawn anew the old player stands beside the new
    button.click()


def test_stepping_forwards_and_backwards_tells_the_same_story(page, url):
    opened(page, url)
    told = [words(page)]
    for _ in range(14):
        press(page, "Next step")
        told.append(words(page))
    assert "scores all 6 positions at once" in " ".join(told)
    assert "rejected" in " ".join(told) and "bonus token" in " ".join(told)
    for expected in reversed(told[:-1]):
        press(page, "Previous step")
        assert words(page) == expected


def test_keyboard_moves_and_python_hears_of_it(page, url):
    opened(page, url)
    page.get_by_role("slider", name="Step of the run").focus()
    page.keyboard.press("]")
    expect(page.locator(".where")).to_contain_text("Round 2 of 6")
    expect(page.get_by_text("python: row 0, round 1, frame 0")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".where")).to_contain_text("Draft 2 of 5")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("[")
    expect(page.locator(".where")).to_contain_text("Round 1 of 6 · Draft 1 of 5")
    page.keyboard.press("End")
    expect(page.locator(".where")).to_contain_text("Round 6 of 6 · End")
    page.keyboard.press("Home")
    expect(page.locator(".where")).to_contain_text("Round 1 of 6 · Draft 1 of 5")
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()


def test_the_scrubber_says_where_it_is(page, url):
    opened(page, url)
    slider = page.get_by_role("slider", name="Step of the run")
    assert re.fullmatch(r"round 1 of 6, step 1 of \d+", slider.get_attribute("aria-valuetext"))
    slider.fill(slider.get_attribute("max"))
    assert slider.get_attribute("aria-valuetext").startswith("round 6 of 6")


def test_a_token_under_the_keyboard_lights_its_row_and_bars(page, url):
    opened(page, url)
    press(page, "Next round")
    press(page, "Previous step")
    page.locator("[data-slot='0']").first.focus()
    expect(page.locator("tbody tr").first).to_have_class(re.compile("lit"))
    expect(page.get_by_role("img", name=re.compile("^Draft 1: ")).last).to_be_attached()
    page.locator("tbody tr").nth(2).hover()
    expect(page.locator("tbody tr").nth(2)).to_have_class(re.compile("lit"))
    expect(page.locator("svg").filter(has_text="Position 3: draft")).to_be_visible()


def test_rows_can_be_switched(page, url):
    opened(page, url)
    before = page.locator("table").text_content()
    page.get_by_label("Row of the batch").select_option(label="2")
    expect(page.get_by_text("python: row 1, round 0, frame 0")).to_be_visible()
    press(page, "Last step")
    expect(page.get_by_text(re.compile("python: row 1, round 5"))).to_be_visible()
    press(page, "First step")
    assert page.locator("table").text_content() != before


def test_a_link_opens_its_round(page, url):
    opened(page, f"{url}/?round=3")
    expect(page.locator(".where")).to_contain_text("Round 4 of 6")
    expect(page.locator(".badge")).to_have_text("recorded")


def test_a_live_run_loses_no_round_and_is_followed(page, url):
    opened(page, f"{url}/?live=1")
    expect(page.get_by_role("button", name="Follow live")).to_be_visible()
    press(page, "Go on")
    expect(page.locator(".where")).to_contain_text("Round 6 of 6 · End", timeout=20000)
    expect(page.get_by_role("button", name="Follow live")).to_be_hidden()
    press(page, "First step")
    for number in range(1, 7):
        expect(page.locator(".where")).to_contain_text(f"Round {number} of 6 · Draft 1 of 5")
        press(page, "Next round")


def test_autoplay_plays_but_never_under_reduced_motion(new_page, url):
    moving = opened(new_page(), f"{url}/?auto=1")
    expect(moving.locator(".where")).to_contain_text("Verify", timeout=15000)
    still = opened(new_page(reduced_motion="reduce"), f"{url}/?auto=1")
    expect(still.get_by_role("button", name="Play", exact=True)).to_be_visible()
    still.wait_for_timeout(1500)
    expect(still.locator(".where")).to_contain_text("Draft 1 of 5")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_downwards_and_reads_at_twelve_pixels(new_page, url, scheme):
    page = opened(new_page(390, 844, color_scheme=scheme), f"{url}/?round=1")
    press(page, "Next round")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    small = page.locator(".player").evaluate("""player => [...player.querySelectorAll("*")]
        .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
        .map(e => parseFloat(getComputedStyle(e).fontSize)).filter(size => size < 12)""")
    assert small == []


def test_a_step_is_saved_as_svg_with_its_own_colours_and_as_png(page, url):
    opened(page, f"{url}/?round=1")
    with page.expect_download() as download:
        press(page, "SVG")
    assert download.value.suggested_filename == "specviz-round-2-step-1.svg"
    svg = Path(download.value.path()).read_text(encoding="utf-8")
    assert svg.startswith("<svg") and "var(" not in svg and "class=" not in svg and "#E69F00" in svg
    assert "Round 2 of 6" in svg and svg.count("http") == 1, "the name space is the only address in it"
    with page.expect_download() as download:
        press(page, "PNG")
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
