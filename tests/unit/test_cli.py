"""The command line: its JSON, its exit codes, and one sentence instead of a traceback for every kind of bad input.

Most tests call `main` in this process; a few start a real one. All decode with the toy pair, which needs no network.
"""

import argparse
import errno
import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
from tiny_models import byte_level_tokenizer, tiny_model

from specviz.cli import main
from specviz.engine.model_store import STORE
from specviz.hardware.options import DEVICES, PRECISIONS
from specviz.loader import space
from specviz.trace import files as trace_files

ROOT = Path(__file__).resolve().parents[2]
KEYS = [
    "pair",
    "drafter",
    "device",
    "dtype",
    "prompt_tokens",
    "text",
    "token_ids",
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "mean_acceptance_length",
    "seconds",
    "tokens_per_second",
]
TOY = ["run", "--pair", "toy", "--prompt", "the cat sees", "--device", "cpu"]
OFFLINE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_CONSTRAINT": "",
    "PIP_RETRIES": "0",
}


@pytest.fixture(scope="module")
def measured_home(tmp_path_factory):
    """A home in which the ceilings are measured once for all tests of this file."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def at_home(measured_home, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(measured_home))


@pytest.fixture
def call(capsys):
    """Run a command; returns (exit code, stdout, stderr)."""

    def run(*arguments):
        capsys.readouterr()  # what the test printed itself while it prepared
        code = main.main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def refused(call):
    """Run a command that must fail: exit code 2, nothing on stdout, one sentence on stderr, which is returned."""

    def run(*arguments):
        code, out, err = call(*arguments)
        lines = err.strip().splitlines()
        assert code == 2 and out == ""
        assert len(lines[-1]) < 1000 and lines[-1][-1] in ".)" and len(lines) <= 4, err
        return lines[-1]

    return run


# --------------------------------------------------------------------------------------------- what it prints


def test_json_of_one_row_has_exactly_the_promised_keys_and_sums_that_agree(call, tmp_path):
    file = tmp_path / "run.json"
    code, out, err = call(
        *TOY,
        "--drafter",
        "autoregressive",
        "--k",
        3,
        "--temperature",
        1,
        "--max-new-tokens",
        20,
        "--trace",
        file,
        "--json",
    )
    said = json.loads(out)
    assert code == 0 and list(said) == KEYS and out.count("\n") == 1 and str(file) in err
    assert (said["pair"], said["drafter"], said["device"], said["dtype"]) == ("toy", "autoregressive", "cpu", "fp32")
    assert said["prompt_tokens"] == 3 and len(said["token_ids"]) == 20 and isinstance(said["text"], str)
    assert said["acceptance_rate"] == said["accepted"] / said["drafted"]
    assert said["mean_acceptance_length"] == len(said["token_ids"]) / said["rounds"]
    assert said["tokens_per_second"] == pytest.approx(20 / said["seconds"])
    trace = trace_files.load(file)
    assert trace.token_ids() == said["token_ids"] and trace.texts[0] == said["text"]
    assert len(trace.rounds) == said["rounds"] and trace.seconds == said["seconds"]


def test_json_of_three_rows_has_lists_and_each_row_is_what_its_seed_gives_alone(call):
    options = ["--k", 3, "--temperature", 1, "--max-new-tokens", 16, "--json"]
    together = json.loads(call(*TOY, "--batch", 3, "--seed", 5, *options)[1])
    assert len(together["token_ids"]) == len(together["text"]) == 3 and isinstance(together["prompt_tokens"], int)
    for row in range(3):
        alone = json.loads(call(*TOY, "--seed", 5 + row, *options)[1])
        assert (alone["token_ids"], alone["text"]) == (together["token_ids"][row], together["text"][row])


def test_plain_decoding_has_null_rates_and_the_greedy_text(call):
    plain = json.loads(call(*TOY, "--k", 0, "--max-new-tokens", 12, "--json")[1])
    assert plain["drafted"] == plain["accepted"] == 0
    assert plain["acceptance_rate"] is None and plain["mean_acceptance_length"] is None
    assert plain["rounds"] == 12 and plain["tokens_per_second"] > 0
    for drafter in ("ngram", "first-layers", "autoregressive"):
        fast = json.loads(call(*TOY, "--drafter", drafter, "--k", 4, "--max-new-tokens", 12, "--json")[1])
        assert fast["token_ids"] == plain["token_ids"]


def test_without_json_the_text_alone_is_on_stdout_and_figures_are_on_stderr(call):
    code, out, err = call(*TOY, "--k", 1, "--max-new-tokens", 6)
    assert code == 0 and out.strip().startswith(("the", "sees", "dog", "cat", "and", "."))
    assert "6 tokens in" in err and "bonus token included" in err and "plain decoding" in err
    assert "row 1, seed 8" in call(*TOY, "--max-new-tokens", 4, "--batch", 2, "--seed", 7)[1]


def test_the_prompt_may_come_from_stdin(call, monkeypatch):
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat sees"))
    arguments = ["run", "--pair", "toy", "--prompt", "-", "--max-new-tokens", 6, "--json"]
    piped = json.loads(call(*arguments)[1])
    assert piped["token_ids"] == json.loads(call(*TOY, "--max-new-tokens", 6, "--json")[1])["token_ids"]


def test_trace_show_prints_every_draft_verdict_and_draw(call, tmp_path):
    file = tmp_path / "run.json"
    call(
        *TOY,
        "--drafter",
        "autoregressive",
        "--k",
        3,
        "--temperature",
        6,
        "--max-new-tokens",
        40,
        "--batch",
        2,
        "--trace",
        file,
    )
    code, out, _ = call("trace", "show", file)
    trace = trace_files.load(file)
    verdicts = [v for r in trace.rounds for v in r.rows]
    assert code == 0 and out.count("\nRound ") == len(verdicts)
    assert out.count("bonus token ") >= sum(v.kind is not None for v in verdicts)
    assert out.count("drawn from the leftover") == sum(v.kind == "leftover" for v in verdicts) > 0
    for word in ("accepted", "rejected", "dropped"):
        assert out.count(f"  {word}") == sum(x.verdict == word for v in verdicts for x in v.positions)
    second = call("trace", "show", file, "--row", "1")[1]
    assert "Row 1" in second and "Row 0" not in second


def test_trace_show_prints_no_control_characters_of_a_foreign_file(call, tmp_path):
    file = tmp_path / "run.json"
    call(*TOY, "--max-new-tokens", 3, "--trace", file)
    data = json.loads(file.read_text())
    data["pair"] = data["note"] = data["texts"][0] = data["machine"]["name"] = "\x1b[2J\x9b\u202e"
    data["pieces"] = dict.fromkeys(data["pieces"], "\x1b]0;x\x07")
    file.write_text(json.dumps(data))
    code, out, _ = call("trace", "show", file)
    assert code == 0 and not {c for c in out if not c.isprintable()} - {"\n"}


def test_the_commands_of_other_modules_are_here_too(call):
    for command in ("ceilings", "roofline", "check", "train", "drafters"):
        with pytest.raises(SystemExit) as end:
            call(command, "--help")
        assert end.value.code == 0


def test_pairs_lists_the_catalogue_with_needs(call):
    code, out, _ = call("pairs", "--device", "cpu")
    assert code == 0 and "smollm2-135m" in out and "qwen3-4b" in out and "gated" in out and out.count("free now") >= 10


def test_fetch_of_a_pair_that_is_here_prints_its_folders(call):
    code, out, _ = call("fetch", "toy")
    assert code == 0 and [Path(line).name for line in out.splitlines()] == ["target", "draft"]


def test_doctor_names_versions_device_ceilings_and_what_is_not_fetched(call, monkeypatch, tmp_path):
    code, out, _ = call("doctor")
    assert code == 0
    for word in ("torch", "streamlit", "Python 3", "threads", "memory free", "Ceilings", "Cache folder", "smollm2"):
        assert word in out
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "new"))
    out = call("doctor")[1]
    assert "doctor --measure" in out and "fetch smollm2-135m" in out


def test_doctor_says_what_is_missing_and_how_to_get_it(call, monkeypatch):
    from specviz.cli import doctor

    monkeypatch.setattr(doctor, "REQUIRED", (*doctor.REQUIRED, "no-such-package"))
    code, out, _ = call("doctor")
    assert code == 2 and "no-such-package: pip install -r requirements.txt" in out


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["run"], "required: --prompt"),
        (["run", "--prompt"], "expected one argument"),
        ([*TOY, "--frobnicate"], "unrecognized arguments"),
        ([*TOY, "--k", "-1"], "from 0 to 16, not -1"),
        ([*TOY, "--k", "99"], "from 0 to 16, not 99"),
        ([*TOY, "--k", "abc"], "must be a whole number, not 'abc'"),
        ([*TOY, "--k", "9" * 6000], "must be a whole number"),
        ([*TOY, "--temperature", "nan"], "temperature must be a number from 0 to 10"),
        ([*TOY, "--temperature", "hot"], "must be a number, not 'hot'"),
        ([*TOY, "--top-p", "0"], "top_p must be above 0"),
        ([*TOY, "--batch", "0"], "The batch must be from 1 to 64"),
        ([*TOY, "--batch", "65"], "The batch must be from 1 to 64"),
        ([*TOY, "--max-new-tokens", "0"], "max_new_tokens must be"),
        ([*TOY, "--seed", "-4"], "seed must be"),
        ([*TOY, "--drafter", "oracle"], "has no drafter 'oracle': choose one of"),
        ([*TOY, "--device", "tpu"], "There is no device 'tpu'"),
        ([*TOY, "--precision", "fp8"], "There is no precision 'fp8'"),
        (["run", "--pair", "smolm2-135m", "--prompt", "x"], "Did you mean smollm2-135m?"),
        (["run", "--pair", "./nowhere+./nothing", "--prompt", "x"], "There is no folder or file"),
        (["run", "--pair", "toy", "--prompt", ""], "The prompt is empty"),
        (["run", "--pair", "toy", "--prompt", " \n"], "The prompt is empty"),
        (["run", "--pair", "toy", "--prompt", "the elephant"], "It knows only: "),
        (["run", "--pair", "toy", "--prompt", "the cat sees" + " the cat sees" * 5000], "tokens and at most"),
        (["run", "--pair", "toy", "--prompt", "x" * 300_000], "more than 200,000 characters"),
        (["fetch", "smolm2-135m"], "Did you mean smollm2-135m?"),
        (["trace", "show", "/no/such/file.json"], "cannot be opened"),
        (["trace", "show", "."], "cannot be opened"),
        (["pairs", "--device", "tpu"], "There is no device 'tpu'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_gives_exit_code_2_and_a_sentence(refused, arguments, says):
    assert says in refused(*arguments)


def test_a_device_that_is_not_there_is_refused(refused):
    import torch

    missing = (
        next(d for d in ("mps", "cuda") if not getattr(torch.backends, d).is_available())
        if not torch.cuda.is_available()
        else "mps"
    )
    assert "choose cpu or auto" in refused("run", "--pair", "toy", "--prompt", "the", "--device", missing)


def test_mismatched_tokenizers_are_refused_with_the_reason(refused, tmp_path):
    """Two whole local folders whose token ids mean different things."""
    for name, words in (("one", ("the", "cat")), ("two", ("dog", "sun"))):
        tiny_model().save_pretrained(tmp_path / name)
        byte_level_tokenizer(words).save_pretrained(tmp_path / name)
    pair = f"{tmp_path / 'one'}+{tmp_path / 'two'}"
    said = refused("run", "--pair", pair, "--drafter", "autoregressive", "--prompt", "the cat", "--device", "cpu")
    assert "token" in said
    assert "token" in refused("fetch", pair)


def test_two_local_folders_that_fit_decode(call, tmp_path):
    for name in ("one", "two"):
        tiny_model().save_pretrained(tmp_path / name)
        byte_level_tokenizer().save_pretrained(tmp_path / name)
    code, out, _ = call(
        "run",
        "--pair",
        f"{tmp_path / 'one'}+{tmp_path / 'two'}",
        "--prompt",
        "the cat",
        "--device",
        "cpu",
        "--max-new-tokens",
        8,
        "--json",
    )
    assert code == 0 and len(json.loads(out)["token_ids"]) == 8


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\x89PNG\r\n\x1a\n",
        b'{"format": "specviz-trace", "version": 99}',
        b'{"hello": "world"}',
    ],
)
def test_truncated_and_foreign_trace_files_are_refused(refused, tmp_path, content):
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    refused("trace", "show", file)


def test_a_row_that_the_trace_does_not_have_is_refused(call, refused, tmp_path):
    file = tmp_path / "run.json"
    call(*TOY, "--max-new-tokens", 2, "--trace", file)
    assert "There is no row 3" in refused("trace", "show", file, "--row", "3")


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: folder,
        lambda folder: folder / "no" / "such" / "folder" / "x.json",
        lambda folder: "/dev/null",
        lambda folder: folder / ("x" * 300),
    ],
    ids=["a folder", "no folder", "a device", "a name too long"],
)
def test_a_trace_path_that_cannot_be_written_is_refused_before_decoding(refused, tmp_path, monkeypatch, make):
    monkeypatch.setattr("specviz.engine.run.Run.start", lambda self: pytest.fail("it began to decode"))
    assert "cannot be written" in refused(*TOY, "--trace", make(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_at_the_end_gives_a_sentence(refused, tmp_path, monkeypatch):
    def full(path, write):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace_files, "write_atomically", full)
    assert "No space left on device" in refused(*TOY, "--max-new-tokens", 2, "--trace", tmp_path / "run.json")


def test_no_network_gives_a_sentence_that_says_what_to_do(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr(STORE, "_models", OrderedDict())  # another test may have loaded the model into this process
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    for command in (["fetch", "smollm2-135m"], ["run", "--prompt", "x"]):
        said = refused(*command)
        assert "index" in said or "network" in said or "download" in said


def test_too_little_disk_space_is_refused_before_the_download(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr(space, "free_disk_bytes", lambda folder: 1_000_000)
    assert "disk space" in refused("fetch", "smollm2-135m")


def test_too_little_memory_is_refused_before_loading(refused, monkeypatch):
    from specviz.engine import run as runs

    monkeypatch.setattr(runs, "free_memory_bytes", lambda device: 1000)
    assert "lower the batch" in refused(*TOY)


def test_running_out_of_memory_gives_a_sentence(refused, monkeypatch):
    def explode(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("specviz.engine.run.decode", explode)
    assert "memory" in refused(*TOY)


def test_a_defect_is_one_sentence_and_what_was_decoded_is_kept(refused, call, tmp_path, monkeypatch):
    from specviz.engine import run as runs

    real = runs.decode

    def broken(*arguments, **options):
        for round_ in real(*arguments, **options):
            yield round_
            if round_.index == 1:
                raise KeyError("a defect")

    monkeypatch.setattr(runs, "decode", broken)
    file = tmp_path / "run.json"
    said = refused(*TOY, "--k", 1, "--max-new-tokens", 30, "--trace", file)
    assert "KeyError" in said and "SPECVIZ_DEBUG=1" in said and len(trace_files.load(file).rounds) == 2


# ------------------------------------------------------------------------------------------ a real process


def start(*arguments, **options):
    """The command as a process that can be interrupted, even if the tests run where Ctrl-C is ignored."""
    return subprocess.Popen(
        [sys.executable, "-m", "specviz", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def test_as_a_module_it_exits_with_2_and_no_traceback():
    process = start("run", "--prompt", "x", "--k", "99")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "") and err == "k must be a whole number from 0 to 16, not 99.\n"


def test_a_closed_pipe_is_not_an_error():
    process = start("run", "--help")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=120) in (0, 2) and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are sent as on Unix")
def test_ctrl_c_stops_within_a_step_and_keeps_what_was_decoded(tmp_path):
    file = tmp_path / "run.json.gz"
    process = start(
        "run",
        "--pair",
        "toy",
        "--prompt",
        "the cat",
        "--k",
        1,
        "--temperature",
        1,
        "--max-new-tokens",
        4000,
        "--batch",
        8,
        "--device",
        "cpu",
        "--trace",
        file,
    )
    for line in process.stderr:
        if line.startswith("Decoding"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err and "Stopped after" in err
    trace = trace_files.load(file)
    assert trace.end == "stopped" and 0 < len(trace.token_ids()) < 4000


# ---------------------------------------------------------------------------------------- shared options


def commands(parser):
    """Every command's parser, subcommands included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from commands(command)


def test_every_command_has_the_same_device_and_precision_options_and_names_every_choice():
    helps = {"--device": set(), "--precision": set()}
    for command in commands(main._parser()):
        for action in command._actions:
            if set(action.option_strings) & helps.keys():
                assert action.default == "auto"
                helps[action.option_strings[0]].add(action.help.partition(" (")[0])
    assert helps == {"--device": {", ".join(DEVICES)}, "--precision": {", ".join(PRECISIONS)}}


def test_the_help_of_every_command_can_be_printed():
    for command in commands(main._parser()):
        assert command.format_help()
