"""Measuring the roofs: plausible, stoppable, kept, and deaf to a damaged file."""

import dataclasses
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from specviz.errors import SettingsError
from specviz.hardware import ceilings, facts, machine
from specviz.trace.records import Ceilings
from specviz.worker import Job, Stopped


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Small sizes, so that a test takes milliseconds, and a folder of its own."""
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    monkeypatch.setitem(ceilings._BUFFER_BYTES, "cpu", 2**22)
    monkeypatch.setitem(ceilings._WIDEST, "cpu", 256)
    monkeypatch.setattr(ceilings, "_SECONDS", {False: 0.1, True: 0.05})


def test_measured_roofs_are_plausible_and_lie_in_their_spread():
    seen = []
    roofs = ceilings.measure("cpu", "fp32", job=Job(seen.append))
    assert 1e8 < roofs.bandwidth < 1e13 and 1e8 < roofs.flops < 1e15
    assert roofs.bandwidth_spread[0] <= roofs.bandwidth <= roofs.bandwidth_spread[1]
    assert roofs.flops_spread[0] <= roofs.flops <= roofs.flops_spread[1]
    shares = [progress.fraction for progress in seen]
    assert shares[0] == 0 and shares[-1] == 1 and shares == sorted(shares)


def test_a_result_is_kept_by_precision():
    assert ceilings.cached("cpu", "fp32") is None
    roofs = ceilings.measure("cpu", "fp32")
    assert ceilings.cached("cpu", "fp32") == roofs
    assert ceilings.cached("cpu", "bf16") is None


def test_a_quick_result_does_not_replace_a_full_one():
    full = ceilings.measure("cpu", "fp32")
    ceilings.measure("cpu", "fp32", quick=True)
    assert ceilings.cached("cpu", "fp32") == full


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"version": 1, "facts": 3}', '{"version": 99}', "[" * 5000]
)
def test_a_damaged_file_is_ignored_and_written_anew(content):
    facts.file().write_text(content)
    assert ceilings.cached("cpu", "fp32") is None
    roofs = ceilings.measure("cpu", "fp32")
    assert ceilings.cached("cpu", "fp32") == roofs


@pytest.mark.parametrize(
    "damage",
    [
        {"bandwidth": -1},
        {"flops": "fast"},
        {"flops_spread": [1]},
        {"device": "cuda"},
        {"extra": 1},
        {"bandwidth": None},
    ],
)
def test_a_damaged_entry_is_ignored(damage):
    ceilings.measure("cpu", "fp32")
    key = ceilings._key("cpu", "fp32")
    facts.write("ceilings", key, facts.read("ceilings", key) | damage)
    assert ceilings.cached("cpu", "fp32") is None


def test_stop_is_honoured_and_keeps_nothing():
    calls = iter([False, False, False, True])
    with pytest.raises(Stopped):
        ceilings.measure("cpu", "fp32", job=Job(stop=lambda: next(calls, True)))
    assert ceilings.cached("cpu", "fp32") is None


def test_an_unknown_precision_is_refused():
    with pytest.raises(SettingsError, match="fp32, bf16, fp16"):
        ceilings.measure("cpu", "fp7")


def test_a_folder_that_cannot_be_written_does_not_spoil_the_measurement(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SPECVIZ_HOME", str(blocked / "below"))
    assert ceilings.measure("cpu", "fp32").flops > 0


def test_facts_of_several_threads_do_not_lose_each_other():
    threads = [threading.Thread(target=facts.write, args=("kind", str(i), {"i": i})) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(facts.read("kind", str(i)) == {"i": i} for i in range(16))


def test_facts_of_several_processes_do_not_lose_each_other(monkeypatch, tmp_path):
    """Two processes add facts at the same time; every fact of both is in the file afterwards."""
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    program = (
        "import sys, time\n"
        "from specviz.hardware import facts\n"
        "time.sleep(max(0.0, float(sys.argv[2]) - time.time()))\n"
        "for i in range(50): assert facts.write('kind', f'{sys.argv[1]} {i}', {'i': i})\n"
    )
    start = str(time.time() + 1)
    command = [sys.executable, "-c", program]
    processes = [
        subprocess.Popen([*command, name, start], cwd=Path(__file__).parents[2]) for name in ("first", "second")
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert all(facts.read("kind", f"{name} {i}") == {"i": i} for name in ("first", "second") for i in range(50))


def test_the_machine_is_described_and_has_memory():
    record = machine.describe("cpu", "fp32")
    assert record.name and record.torch == torch.__version__ and record.threads == torch.get_num_threads()
    assert machine.available_devices()[-1] == "cpu"
    assert machine.resolve_device("auto") == machine.available_devices()[0]


def test_the_timer_adds_up_sections_and_survives_an_error():
    timer = machine.clock("cpu")
    for _ in range(2):
        with timer.section("verify"):
            time.sleep(0.01)
    with pytest.raises(RuntimeError), timer.section("draft"):
        raise RuntimeError
    assert 0.02 <= timer.seconds("verify") < 1
    assert timer.seconds("draft") > 0 and timer.seconds("never") == 0
    timer.reset()
    assert timer.seconds("verify") == 0


def test_a_busy_machine_is_told_with_the_measurement(monkeypatch):
    monkeypatch.setattr(ceilings, "load_of_others", lambda device: lambda: 0.42)
    roofs = ceilings.measure("cpu", "fp32")
    assert ceilings.other_load(roofs) == 0.42
    assert "other programs used 42 % of the device" in ceilings.steady_warning(roofs)
    later = dataclasses.replace(roofs, measured_at="2020-01-01T00:00:00+00:00")
    assert ceilings.other_load(later) is None, "the load belongs to one measurement only"


def test_an_idle_machine_with_close_repetitions_has_no_warning():
    roofs = Ceilings(
        device="cpu",
        precision="fp32",
        bandwidth=1e10,
        flops=1e11,
        bandwidth_spread=(9e9, 1.1e10),
        flops_spread=(9e10, 1.1e11),
        measured_at="2026-01-01T00:00:00+00:00",
    )
    assert ceilings.steady_warning(roofs) is None
    wide = dataclasses.replace(roofs, flops_spread=(1e10, 3e11))
    assert "3.0 times the median" in ceilings.steady_warning(wide)


def test_the_load_of_others_leaves_out_this_programs_own_work():
    others = ceilings.load_of_others("cpu")
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    assert 0 <= others() <= 1
