"""The monitor: one thread, bounded, ends cleanly, tells what is missing; NVML against a fake of its interface."""

import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from specviz.hardware import monitor


class FakeNvml:
    """The part of pynvml's interface that is used. `absent`: questions that this device does not answer."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self, absent=(), broken=False):
        self.absent, self.broken, self.open = set(absent), broken, 0
        self.millijoules = 5_000_000

    def nvmlInit(self):
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 0:
            raise self.NVMLError("Invalid Argument")
        return "handle"

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA Fake"

    def _answer(self, what, value):
        if what in self.absent:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._answer("rates", SimpleNamespace(gpu=50, memory=25))

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self._answer("memory", SimpleNamespace(used=2**30, total=2**34))

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._answer("power", 120_000)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert kind == self.NVML_CLOCK_SM
        return self._answer("clock", 1500)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self.millijoules += 1000
        return self._answer("energy", self.millijoules)


def _use(monkeypatch, **libraries):
    monkeypatch.setattr(monitor, "_library", libraries.get)


def test_nvml_values_come_in_plain_units(monkeypatch):
    fake = FakeNvml()
    _use(monkeypatch, pynvml=fake, psutil=psutil)
    source = monitor.source("cuda")
    sample = source.read(1.0)
    assert source.name == "NVIDIA Fake" and source.note == ""
    assert (sample.compute, sample.memory_traffic, sample.watts, sample.clock_hertz) == (0.5, 0.25, 120.0, 1.5e9)
    assert (sample.memory_used, sample.memory_total, sample.joules) == (2**30, 2**34, 1.0)
    source.close()
    assert fake.open == 0


def test_energy_is_summed_from_power_where_there_is_no_counter(monkeypatch):
    _use(monkeypatch, pynvml=FakeNvml({"energy"}))
    source = monitor.source("cuda:0")
    assert [source.read(t).joules for t in (1.0, 2.0, 2.5)] == [0.0, 120.0, 180.0]


def test_what_a_gpu_does_not_tell_is_none_and_said(monkeypatch):
    _use(monkeypatch, pynvml=FakeNvml({"energy", "power", "rates", "clock", "memory"}))
    source = monitor.source("cuda")
    sample = source.read(0.0)
    assert {sample.compute, sample.watts, sample.joules, sample.memory_used, sample.clock_hertz} == {None}
    assert source.note == "This GPU does not report its power and utilization."


@pytest.mark.parametrize(
    "device,libraries,words",
    [
        ("cuda", {"psutil": psutil}, "install nvidia-ml-py"),
        ("cuda", {"psutil": psutil, "pynvml": FakeNvml(broken=True)}, "Driver Not Loaded"),
        ("cuda:3", {"psutil": psutil, "pynvml": FakeNvml()}, "Invalid Argument"),
        ("mps", {"psutil": psutil}, "does not report its GPU's load"),
        ("cpu", {}, "install psutil"),
        ("cpu", {"psutil": psutil}, ""),
    ],
)
def test_an_absent_library_or_permission_is_told_in_a_sentence(monkeypatch, device, libraries, words):
    _use(monkeypatch, **libraries)
    source = monitor.source(device)
    assert words in source.note and (source.note.endswith(".") or not source.note)
    assert isinstance(source.read(0.0), monitor.Sample)


def test_a_failed_nvml_is_shut_down_again(monkeypatch):
    fake = FakeNvml()
    _use(monkeypatch, pynvml=fake, psutil=psutil)
    monitor.source("cuda:3")
    assert fake.open == 0


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_the_thread_samples_is_bounded_and_ends():
    before = threading.active_count()
    watch = monitor.Monitor("cpu", interval=0.01, capacity=5).start()
    assert watch.start() is watch and threading.active_count() == before + 1
    wait_for(watch.samples)
    first = watch.samples()[0]
    wait_for(lambda: first not in watch.samples())  # more were taken than are kept
    watch.stop()
    samples = watch.samples()
    assert len(samples) == 5 and not watch.running and threading.active_count() == before
    assert samples == sorted(samples, key=lambda s: s.seconds)
    assert watch.samples(samples[-2].seconds) == samples[-1:]
    assert all(0 <= s.compute <= 1 and 0 < s.memory_used < s.memory_total and s.cores for s in samples)


def test_a_source_that_fails_ends_the_watch_not_the_run():
    closed = []

    class Broken(monitor.Source):
        def read(self, seconds):
            raise OSError("device lost")

        def close(self):
            closed.append(True)

    with monitor.Monitor(interval=0.001, make_source=lambda device: Broken()) as watch:
        wait_for(lambda: not watch.running)
    assert closed and "device lost" in watch.note and watch.samples() == []


def test_sampling_costs_well_under_one_per_cent():
    with monitor.Monitor("cpu", interval=0.02) as watch:
        wait_for(lambda: len(watch.samples()) >= 20)
    per_sample = watch.spent_seconds / len(watch.samples())
    assert 0 < per_sample < 0.01 * monitor.INTERVAL_SECONDS


def test_a_monitor_that_nobody_asks_stops_itself_and_can_start_again():
    watch = monitor.Monitor("cpu", interval=0.01, patience=0.5).start()
    wait_for(lambda: not watch.running)
    watch.start()
    wait_for(lambda: watch.samples() and watch.samples()[-1].seconds > 1.0)
    assert watch.running, "as long as somebody asks it goes on"
    watch.stop()
