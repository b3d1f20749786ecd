"""The Retune page through Streamlit's own test runner: first paint, prompts that are refused, the outcome."""

from pathlib import Path

import pytest

from specviz.training import retune
from specviz.training.evaluate import Live


def words(app):
    kinds = (app.error, app.warning, app.info, app.success, app.markdown, app.caption)
    return " ".join(element.value for kind in kinds for element in kind)


@pytest.fixture
def page(open_app):
    return open_app().switch_page("pages/retune.py").run()


def test_the_page_opens_with_prompts_to_begin_with(page):
    assert not page.exception and not page.error
    assert len(page.text_area(key="retune-prompts").value.splitlines()) >= retune.FEWEST
    assert "vendor's claim" in words(page)
    assert page.button(key="retune-stop").disabled


@pytest.mark.parametrize(
    ("prompts", "name", "said"),
    [
        ("only one", "mine", "8 to 200 prompts"),
        ("\n".join(f"p {i}" for i in range(9)), "../../x", "name"),
        ("\n".join(["same"] * 9), "mine", "twice"),
    ],
)
def test_refused_prompts_and_names_give_a_sentence(page, prompts, name, said):
    page.text_area(key="retune-prompts").set_value(prompts)
    page.text_input(key="retune-name").set_value(name)
    page.button(key="retune-go").click().run()
    assert not page.exception and said in page.error[0].value
    assert "retune-job" not in page.session_state


def judged(length):
    live = Live(length, None, None, [], [], [], 1.0, 0, 6, 30.0, 25.0, 6, [], 0.02, 0.8, ((10, 5),) * 6)
    return retune.Judged(live, [0.5, 0.4], [0.5, 0.4])


@pytest.mark.parametrize(
    ("gain", "said", "kind"), [((0.3, 0.1, 0.5), "longer", "success"), ((0.1, -0.1, 0.3), "no clear change", "warning")]
)
def test_an_outcome_is_green_only_if_its_interval_excludes_no_change(page, gain, said, kind):
    job = retune.Retune(retune.RetuneOrder(tuple(f"p {i}" for i in range(8))))
    job.status = "complete"
    job.result = retune.Retuned(judged(1.8), judged(2.1), gain, 8, 2, 900, 40, 30.0, Path("mine"))
    page.session_state["retune-job"] = job
    page.run()
    assert not page.exception
    assert said in getattr(page, kind)[0].value and "6 of 6 greedy texts equal" in words(page)
