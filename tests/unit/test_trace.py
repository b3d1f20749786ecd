"""trace.py: exact round trips, a schema that is true, and one sentence for every file that is no trace."""

import copy
import dataclasses
import errno
import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from specviz.cli import run_summary
from specviz.cli import trace as trace_command
from specviz.engine.model_store import ModelStore
from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.errors import SettingsError, TraceError
from specviz.paths import write_atomically
from specviz.trace import files as trace_files
from specviz.trace import metrics
from specviz.trace.codec import from_json, schema, to_json
from specviz.trace.files import dumps, load, loads, save
from specviz.trace.records import Settings, Trace
from specviz.views import frames

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    """A real run of the toy pair: two rows, drafts accepted, rejected and dropped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_HOME", str(tmp_path_factory.mktemp("home")))
        run = Run(
            RunRequest(
                "toy",
                "autoregressive",
                "the cat sees",
                Settings(k=3, temperature=5.0, top_p=0.97, max_new_tokens=24),
                rows=2,
                device="cpu",
            ),
            ModelStore(),
        ).execute()
    assert run.status == "complete", run.error
    verdicts = {x.verdict for r in run.rounds for v in r.rows for x in v.positions}
    assert verdicts == {"accepted", "rejected", "dropped", "bonus"}
    return run.trace


@pytest.fixture(scope="module")
def text(trace) -> bytes:
    return dumps(trace)


# -------------------------------------------------------------------------------------------- round trips


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_the_round_trip_is_exact(trace, tmp_path, name):
    """Equal dataclasses: every float to its last bit, every tuple and every None."""
    path = save(trace, tmp_path / name)
    assert load(path) == trace and path.name == name
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert dumps(load(path)) == dumps(trace)
    assert os.listdir(tmp_path) == [name]


def test_a_large_trace_is_compressed_and_its_name_says_so(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "GZIP_FROM_BYTES", 1000)
    path = save(trace, tmp_path / "run.json")
    assert path.name == "run.json.gz" and load(path) == trace and len(path.read_bytes()) < len(dumps(trace)) / 2


def test_the_same_trace_gives_the_same_bytes(trace, tmp_path):
    one, two = save(trace, tmp_path / "a.json.gz"), save(trace, tmp_path / "b.json.gz")
    assert one.read_bytes() == two.read_bytes()


def test_text_of_any_script_survives(trace, tmp_path):
    odd = dataclasses.replace(trace, texts=("naïve 猫 🙂 \0 \u2028", ""), note='"\\\n')
    assert load(save(odd, tmp_path / "x.json")) == odd


# ----------------------------------------------------------------------------------------------- schema


def test_the_schema_in_the_docs_is_the_one_in_the_code():
    assert json.loads((ROOT / "docs" / "trace.schema.json").read_text()) == schema()


def test_the_schema_takes_a_real_trace_and_refuses_a_changed_one(trace):
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    data = json.loads(dumps(trace))
    validator.validate(data)
    for change in ({"version": 3}, {"end": "whenever"}, {"surprise": 1}, {"rounds": {}}):
        assert not validator.is_valid(data | change)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "assets" / "traces").rglob("*.json.gz")), ids=lambda p: p.name)
def test_the_traces_that_ship_can_be_read_and_fit_the_schema(path):
    shipped = load(path)
    jsonschema.Draft202012Validator(schema()).validate(json.loads(dumps(shipped)))


# ------------------------------------------------------------------------------------- files that are no trace


def told(raw: bytes) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(TraceError) as error:
        loads(raw, "run.json")
    said = str(error.value)
    assert said.endswith(".") and len(said) < 300 and "\n" not in said
    return said


HEAD = b'{"format": "specviz-trace", "version": '
FOREIGN = {
    "empty": b"",
    "blank": b"   \n",
    "not json": b"hello",
    "a picture": b"\x89PNG\r\n\x1a\n\0\0\0",
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "a list": b"[1, 2, 3]",
    "a number": b"7",
    "null": b"null",
    "another object": b'{"format": "other"}',
    "no version": b'{"format": "specviz-trace"}',
    "version as text": HEAD + b'"1"}',
    "version true": HEAD + b"true}",
    "version 0": HEAD + b"0}",
    "only a head": HEAD + b"1}",
    "deep list": b"[" * 200_000,
    "deep object": b'{"a":' * 200_000,
    "deep inside": HEAD + b'1, "pair": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a number too long": HEAD + b"9" * 10_000 + b"}",
    "gzip of nothing": gzip.compress(b""),
    "not gzip after all": b"\x1f\x8b hello",
    "gzip of junk": gzip.compress(b"{{{"),
}


@pytest.mark.parametrize("raw", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_are_refused_with_a_sentence(raw):
    told(raw)


def test_a_trace_of_a_future_version_says_to_update():
    assert "update SpecViz" in told(b'{"format": "specviz-trace", "version": 3, "anything": {"may": "follow"}}')


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(text, share):
    assert "cut short" in told(text[: int(len(text) * share)])
    packed = gzip.compress(text)
    assert "cut short" in told(packed[: int(len(packed) * share)])


def test_a_damaged_gzip_is_refused(text):
    packed = bytearray(gzip.compress(text))
    packed[len(packed) // 2] ^= 0xFF
    told(bytes(packed))


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"null", b'"3"', b"true", b"-1.0"])
def test_numbers_that_are_none_are_refused(trace, word):
    data = to_json(trace)
    data["prefill_seconds"] = "HERE"
    assert told(json.dumps(data).encode().replace(b'"HERE"', word))


def test_a_gzip_bomb_is_refused_without_being_unpacked_whole(monkeypatch):
    """A few kilobytes that unpack to far more than is read: the rest is never unpacked."""
    monkeypatch.setattr(trace_files, "MAX_BYTES", 2**20)
    bomb = gzip.compress(b" " * 2**26)
    assert len(bomb) < 2**17
    unpacked = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: unpacked.append(size) or read(self, size))
    assert "larger than 1 MiB" in told(bomb) and unpacked == [2**20 + 1]


def test_a_huge_file_is_refused_and_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "MAX_BYTES", 2**20)
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(TraceError, match="larger than 1 MiB"):
        load(tmp_path / "huge.json")


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_a_path_that_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(TraceError, match="cannot be opened"):
        load(tmp_path / name)


CHANGES = {
    "unknown entry": lambda d: d.update(surprise=1),
    "a very long unknown entry": lambda d: d.update({"x" * 10**6: 1}),
    "missing entry": lambda d: d.pop("pair"),
    "text for a number": lambda d: d.update(prefill_seconds="long"),
    "setting out of range": lambda d: d["settings"].update(k=99),
    "no rows": lambda d: d.update(prompts=[], texts=[]),
    "texts of other rows": lambda d: d["texts"].append("more"),
    "token without text": lambda d: d["pieces"].pop("0"),
    "piece of no token": lambda d: d["pieces"].update(x="y"),
    "rounds out of order": lambda d: d["rounds"].reverse(),
    "negative time": lambda d: d["rounds"][0].update(draft_seconds=-1.0),
    "endless time": lambda d: d["rounds"][0].update(draft_seconds=1e300),
    "a number beyond counting": lambda d: d["rounds"][0]["target_cost"].update(flops=10**400),
    "negative cost": lambda d: d["rounds"][0]["draft_cost"].update(bytes=-1),
    "row that is not there": lambda d: d["rounds"][0]["rows"][0].update(row=5),
    "row twice": lambda d: d["rounds"][0]["rows"].append(d["rounds"][0]["rows"][0]),
    "more accepted than drafted": lambda d: d["rounds"][0]["rows"][0].update(accepted=9),
    "token that nobody drafted": lambda d: d["rounds"][0]["rows"][0]["emitted"].append(0),
    "verdict that contradicts": lambda d: d["rounds"][0]["rows"][0]["positions"][0].update(verdict="bonus"),
    "uniform of 7": lambda d: d["rounds"][0]["rows"][0]["positions"][0].update(accept_uniform=7.0),
    "probability of 2": lambda d: d["rounds"][0]["rows"][0]["positions"][0]["target_probs"].__setitem__(0, 2.0),
    "arrays of two lengths": lambda d: d["rounds"][0]["rows"][0]["positions"][0]["support"].append(77),
    "no draft where one was judged": lambda d: d["rounds"][0]["rows"][0]["positions"][0].update(draft_token=None),
    "ceiling of nothing": lambda d: d["machine"]["ceilings"].update(flops=0.0),
    "plain step of no time": lambda d: d["baseline"]["seconds"].__setitem__(0, 0.0),
    "plain steps unequal": lambda d: d["baseline"]["rows"].append(1),
    "end unknown": lambda d: d.update(end="later"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_trace_that_contradicts_itself_is_refused(text, change):
    data = json.loads(text)
    change(data)
    told(json.dumps(data).encode())


@pytest.mark.slow
def test_whatever_loads_can_be_shown_and_measured(text):
    """A real trace with one or two values changed at random, hundreds of times: it is refused with a sentence, or
    the player's frames, the metrics and the table of the command line all work on it, without NaN."""
    base, chance = json.loads(text), random.Random(0)
    values = [
        None,
        0,
        1,
        -1,
        3,
        17,
        10**19,
        0.5,
        -0.5,
        1e308,
        -1e308,
        5e-324,
        "",
        "rejected",
        "leftover",
        "eos",
        True,
        [],
        {},
    ]
    loaded = 0
    for _ in range(250):
        data = copy.deepcopy(base)
        for _ in range(chance.choice([1, 2])):
            node = data
            while True:  # walk down to a random place
                key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
                if not isinstance(node[key], dict | list) or not node[key] or chance.random() < 0.05:
                    break
                node = node[key]
            same = [v for v in values if type(v) is type(node[key])]
            node[key] = chance.choice(same if same and chance.random() < 0.7 else values)
        try:
            changed = from_json(data)
        except TraceError as error:
            assert str(error).endswith(".") and len(str(error)) < 300
            continue
        loaded += 1
        for row in range(len(changed.prompts)):
            json.dumps(frames.row_rounds(changed, row), allow_nan=False)
            assert trace_command._row(changed, row)
        json.dumps([run_summary.as_json(changed), metrics.speed_up(changed.rounds, changed.baseline)], allow_nan=False)
        assert trace_command._head(changed)
        dumps(changed)
    assert loaded > 20


# ------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("step", ["write", "flush to disk", "rename"])
def test_a_disk_that_fails_leaves_nothing_half_written(trace, tmp_path, monkeypatch, step):
    """The file that was there before stays as it was, and no temporary file is left."""
    path = save(trace, tmp_path / "run.json")
    before = path.read_bytes()

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "write":
        monkeypatch.setattr(Path, "write_bytes", full)
    else:
        monkeypatch.setattr(os, "fsync" if step == "flush to disk" else "replace", full)
    with pytest.raises(OSError, match="No space left"):
        save(dataclasses.replace(trace, note="a newer one"), path)
    monkeypatch.undo()
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.json"]


def test_writing_makes_the_folder_it_needs(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "c.bin", lambda file: file.write_bytes(b"x"))
    assert (tmp_path / "a" / "b" / "c.bin").read_bytes() == b"x"


def test_a_trace_loads_and_is_shown_without_torch(trace, tmp_path):
    """In a process in which torch, transformers and streamlit cannot be imported."""
    path = save(trace, tmp_path / "run.json")
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'streamlit', 'numpy'): sys.modules[name] = None\n"
        "from specviz.trace.files import load\n"
        "from specviz.cli.main import main\n"
        f"print(len(load({str(path)!r}).rounds))\n"
        f"sys.exit(main(['trace', 'show', {str(path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(len(trace.rounds)) and "bonus token" in done.stdout


def test_settings_from_a_trace_obey_the_same_limits():
    with pytest.raises(SettingsError):
        Settings(k=17)
