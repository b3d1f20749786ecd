"""A drafter from a folder on the Decode page, and that no address can make the app run code."""

import pytest
from tiny_models import write_dflash
from transformers import AutoModelForCausalLM

from specviz.loader.toy import FOLDER
from specviz.models.causal import CausalModel
from specviz.ui.controls import OWN

TOY = {"pair": "toy", "prompt": "the cat sees the", "length": "16", "k": "4", "go": "1"}


def test_a_folder_typed_or_linked_is_the_drafter(open_app, finish, tmp_path):
    folder = write_dflash(tmp_path / "mine", CausalModel(AutoModelForCausalLM.from_pretrained(FOLDER / "target")))
    app = finish(open_app(**TOY, drafter=OWN, folder=str(folder)))
    assert not app.exception
    run = app.session_state["run"]
    assert run.status == "complete", run.error
    assert "DFlash" in run.trace.drafter_label


@pytest.mark.parametrize("where", ["drafter", "folder"])
def test_an_address_can_name_code_but_never_runs_it(open_app, tmp_path, where):
    """Neither as the drafter nor as its folder, not even with go=1; in the box the reason is shown."""
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Mine: pass\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    app = open_app(**TOY, **({"drafter": name} if where == "drafter" else {"drafter": OWN, "folder": name}))
    assert not app.exception
    assert not (tmp_path / "ran").exists()
    if where == "folder":
        assert any("command line only" in e.value for e in app.error)
        assert "run" not in app.session_state
    else:
        assert app.selectbox("drafter").value != name  # an unknown name falls back to a known one


def test_an_empty_or_wrong_folder_is_a_sentence_and_keeps_the_other_settings(open_app):
    app = open_app(**TOY, drafter=OWN, seed="7")
    assert any("path of the drafter's folder" in e.value for e in app.error)
    app.text_input("folder").input("/no/such/place").run()
    assert any("no drafter's folder /no/such/place" in e.value for e in app.error)
    assert app.number_input("seed").value == 7
