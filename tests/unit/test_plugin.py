"""Drafters of one's own: who may load them, what their faults are called, and that the conformance checks pass a good
one and catch those that would change the text or go stale."""

import json
import re
from pathlib import Path

import pytest
from tiny_models import write_dflash

from specviz.checks import conformance
from specviz.cli import main
from specviz.drafters import plugin
from specviz.drafters.names import check_drafter, code_permitted, plugin_parts
from specviz.engine.drafter_factory import make_drafter
from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.errors import PairError, PluginError
from specviz.loader.pairs import find_pair
from specviz.trace.records import Settings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "drafters.md"
GOOD = next(
    block
    for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    if "class Bigram" in block
)
"""The worked example of docs/drafters.md, as it stands there."""

WRONG = {
    # what is changed in the example, and the demand that must fail
    "a q that was not drawn from": (
        "said.append(draw(q, u))",
        "said.append(int(q.argmax()))",
        "q is the law of the drafts",
    ),
    "a q that is the law of another temperature": (
        "qs.append(q)",
        "qs.append(warp(logits[said[-1] if said else request.anchor], 1.4))",
        "q is the law of the drafts",
    ),
    "rejected drafts stay": (
        "tokens.append(said)",
        "tokens.append(said); self.counts[request.row][request.anchor, said[0]] += 3",
        "proposing leaves no trace: rejected drafts are forgotten",
    ),
    "neighbours are mixed": (
        "logits = self.counts[request.row].log()",
        "logits = sum(self.counts.values()).log()",
        "a row does not depend on its neighbours",
    ),
    "too many tokens": (
        "for u in request.uniforms:",
        "for u in (*request.uniforms, 0.5):",
        "K from 0 to 16, shapes and sums of every proposal",
    ),
    "a generator of its own": (
        "draw(q, u)",
        "draw(q, float(torch.rand(())))",
        "the same seed gives the same proposals",
    ),
    "dropped rows stay": (
        "torch.full((self.vocab, self.vocab), 0.1)",
        "self.counts.get(('old', row), torch.full((self.vocab, self.vocab), 0.1))",
        "a dropped row can be started again",
    ),
}


@pytest.fixture
def written(tmp_path):
    """Writes a plug-in's text and returns its FILE.py:CLASS."""

    def write(text, cls="Bigram", file="mine.py"):
        (tmp_path / file).write_text(text, encoding="utf-8")
        return f"{tmp_path / file}:{cls}"

    return write


@pytest.fixture
def permitted():
    with code_permitted():
        yield


def faults(name, **options):
    options = {"draws": 400, "samples": 200} | options
    return {check.name: check.seen for check in conformance.run(name, **options) if not check.passed}


def test_the_worked_example_passes_every_check(written, permitted):
    """What the documentation shows to copy keeps every promise, and loses nothing through the production loop."""
    assert faults(written(GOOD)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_drafter_is_caught(written, permitted, what):
    """One line of the good example is changed; the demand that it breaks is named."""
    old, new, demand = WRONG[what]
    text = GOOD.replace(old, new)
    if what == "dropped rows stay":
        text = text.replace(
            "del self.counts[row], self.last[row]", "self.counts['old', row] = self.counts.pop(row); del self.last[row]"
        )
    assert text != GOOD
    assert demand in faults(written(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram", "autoregressive", "first-layers", "published"])
def test_the_labs_own_drafters_pass_too(name, tmp_path, toy_target):
    """Lookup, a model of its own, the target's first layers, and a folder in the DFlash layout."""
    assert faults(str(write_dflash(tmp_path / "mine", toy_target)) if name == "published" else name) == {}


def run_of(name, **settings):
    """A run on the toy pair, as the command line would do it."""
    return Run(RunRequest("toy", name, "the cat", Settings(max_new_tokens=12, **settings), raw=True)).execute()


def test_a_run_with_a_plug_in_says_what_plain_decoding_says(written, permitted):
    mine, plain = run_of(written(GOOD), k=4), run_of("ngram", k=0)
    assert mine.status == "complete", mine.error
    assert mine.trace.texts == plain.trace.texts and sum(v.verified for r in mine.rounds for v in r.rows) > 0


FAULTS = [
    ("import nothing_of_this_name", "mine.py cannot be imported: ModuleNotFoundError: No module named"),
    ("def (:", "cannot be imported: SyntaxError"),
    ("raise SystemExit(1)", "it ends the program"),
    ("Bigram = 3", "defines no class Bigram"),
    (GOOD.replace("def drop", "def drop_it"), "mine.py:Bigram lacks the method drop"),
    (GOOD.replace('"bigram", ', "7, ", 1), "its attribute name is 7, but must be of the type str"),
    (GOOD.replace("(), 16, False", "(99,), 16, False"), "it taps layer 99, but the target's layers go from 0 to 1"),
    (GOOD.replace("(), 16, False", "(), 0, False"), "max_k is 0"),
    (GOOD.replace("self.counts = {}", "self.counts = 1 / 0"), "failed in being made as CLASS.*ZeroDivisionError"),
    (GOOD.replace("tokens, probs = [], []", "raise KeyError('row')"), "mine.py:Bigram failed in propose: KeyError"),
    (GOOD.replace("return proposal(tokens, probs)", "return tokens"), "returned list, but must return a Proposal"),
    (GOOD.replace("proposal(tokens, probs)", "proposal(tokens, [p[:, :2] for p in probs])"), r"has the shape \[4, 2\]"),
    (GOOD.replace("proposal(tokens, probs)", "proposal(tokens, [p * 1.01 for p in probs])"), "slot 1 sums to 1.01"),
    (GOOD.replace("proposal(tokens, probs)", "proposal(tokens, [p.float() for p in probs])"), "float32, but must be"),
    (GOOD.replace("proposal(tokens, probs)", "proposal(tokens, [-p for p in probs])"), "negative probability"),
    (
        GOOD.replace("proposal(tokens, probs)", "proposal([[t + 6 for t in x] for x in tokens], probs)"),
        r"drafted the token \d+, but the target knows 0 to 5",
    ),
    (GOOD.replace("proposal(tokens, probs)", "proposal(tokens * 2, probs)"), "tokens has 2 entries where 1 rows asked"),
    (
        GOOD.replace(
            "proposal(tokens, probs)",
            "proposal(tokens, [torch.eye(6, dtype=p.dtype)[[(t + 1) % 6 for t in x]] for x, p in zip(tokens, probs)])",
        ),
        "to which its own q gives no chance",
    ),
    (GOOD.replace("proposal(tokens, probs)", "proposal(tokens, [p * float('nan') for p in probs])"), "is no number"),
    (
        GOOD.replace("proposal(tokens, probs)", "proposal(tokens, probs, [p.log() + float('inf') for p in probs])"),
        "draft_logits has entries that are NaN or",
    ),
    (
        GOOD.replace("proposal(tokens, probs)", "proposal(tokens, probs, [p * 0 - float('inf') for p in probs])"),
        r"drafted the token \d, whose own logit is -inf",
    ),
    (
        GOOD.replace(
            "return proposal(tokens, probs)",
            "import dataclasses; "
            "return dataclasses.replace(proposal(tokens, probs), confidence=[[float('nan')] * len(t) for t in tokens])",
        ),
        "a confidence is no probability",
    ),
    (GOOD.replace("for token in emitted:", "for token in [emitted[99]]:"), "failed in (start|commit): IndexError"),
]


@pytest.mark.parametrize(("text", "words"), FAULTS, ids=[w[:40] for _, w in FAULTS])
def test_every_fault_is_one_sentence(written, permitted, text, words):
    """The sentence names file, class and what is wrong; no traceback reaches the person."""
    run = run_of(written(text), k=4)
    assert run.status == "failed" and re.search(words, run.error), run.error
    assert "mine.py" in run.error and "\n" not in run.error and "The log says more" not in run.error


def test_code_is_loaded_from_the_command_line_only(written, toy_target, monkeypatch):
    """Outside `code_permitted`, which only the command line enters, no path leads to the file: not a run, not what a
    link or a trace asks for."""
    name = written("raise RuntimeError('this code ran')")
    monkeypatch.setattr(plugin, "load", lambda _: pytest.fail("code was loaded"))
    with pytest.raises(PairError, match="command line only"):
        run_of(name)
    with pytest.raises(PairError, match="command line only"):
        make_drafter(name, find_pair("toy"), None, Settings())
    with code_permitted(), pytest.raises(PairError, match="no file"):
        check_drafter(find_pair("toy"), "/nowhere/mine.py:Mine")
    with pytest.raises(PairError, match="command line only"):  # and it ends with the block
        check_drafter(find_pair("toy"), name)


def test_names_of_plug_ins():
    assert plugin_parts("a/b.py:C") == (Path("a/b.py"), "C")
    assert plugin_parts("hybrid") is plugin_parts("folder") is plugin_parts("a.py") is None
    with pytest.raises(PluginError, match="names no class"):
        plugin.load("a.py:9")


# --------------------------------------------------------------------------------------- the command line


def test_the_command_prints_a_line_for_each_check(written, capsys):
    assert main.main(["drafters", "test", written(GOOD), "--draws", "200", "--samples", "200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] and told["pair"] == "toy" and len(told["checks"]) == 11
    wrong = GOOD.replace("for u in request.uniforms:", "for u in (*request.uniforms, 0.5):")
    assert main.main(["drafters", "test", written(wrong), "--draws", "200", "--samples", "200"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  K from 0 to 16" in out and "passed  it can be made" in out and "checks failed." in out


@pytest.mark.parametrize("arguments", [["hybrid"], ["/nowhere.py:X"], ["--draws", "3", "x.py:X"]])
def test_bad_input_to_the_command_is_a_sentence_and_code_2(arguments, capsys):
    assert main.main(["drafters", "test", *arguments]) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0


def test_run_takes_a_plug_in_and_a_folder(written, capsys):
    """`run --drafter` with FILE.py:CLASS; a folder that holds no drafter is refused with a sentence."""
    common = ["run", "--pair", "toy", "--raw", "--prompt", "the cat", "--max-new-tokens", "8", "--json"]
    assert main.main([*common, "--drafter", written(GOOD)]) == 0
    assert json.loads(capsys.readouterr().out)["drafted"] > 0
    folder = str(Path(written(GOOD).rpartition(":")[0]).parent)
    assert main.main([*common, "--drafter", folder]) == 2
    assert "no config.json" in capsys.readouterr().err
    assert main.main([*common, "--drafter", "./no/such/folder"]) == 2
    assert "There is no drafter's folder ./no/such/folder" in capsys.readouterr().err
