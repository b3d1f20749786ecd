"""The one protocol of progress and stop: what a job reports, the time left, its parts, and how watched work ends."""

import time

import pytest

from specviz.errors import SpecVizError
from specviz.worker import Job, Progress, Stopped, Task, Worker


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_time_left_follows_from_the_speed_so_far_and_runs_down_between_reports(clock):
    job = Job()
    job.report("Measuring", 0.0)
    clock[0] += 1.0
    job.report("Measuring", 0.1)
    assert job.progress.seconds_left is None, "too early for an estimate"
    clock[0] += 9.0
    job.report("Measuring", 0.25)
    assert job.progress.seconds_left == pytest.approx(30.0)
    clock[0] += 10.0
    assert job.progress.seconds_left == pytest.approx(20.0)
    clock[0] += 100.0
    assert job.progress.seconds_left == 0.0


def test_time_left_starts_over_when_the_share_falls(clock):
    job = Job()
    for share in (0.0, 0.5, 1.0):
        job.report("Loading", share)
        clock[0] += 10.0
    job.report("Measuring", 0.0)
    clock[0] += 10.0
    job.report("Measuring", 0.1)
    assert job.progress.seconds_left == pytest.approx(90.0)


def test_a_stage_without_a_share_keeps_the_share_and_shares_stay_between_0_and_1():
    job = Job()
    job.report("a", 0.4)
    job.report("b")
    assert (job.progress.stage, job.progress.fraction) == ("b", 0.4)
    for given, kept in ((-1.0, 0.0), (2.0, 1.0)):
        job.report("c", given)
        assert job.progress.fraction == kept


def test_a_part_covers_its_share_of_the_whole_and_passes_bytes_on():
    job = Job()
    part = job.part(0.5, 0.7, "Draft steps")
    part.report("inside", 0.5)
    assert (job.progress.stage, job.progress.fraction) == ("Draft steps", pytest.approx(0.6))
    job.part(0.2, 0.2).report("Downloading", done_bytes=3, total_bytes=4)
    assert job.progress.fraction == 0.2 and job.progress.text == "Downloading: 3 B of 4 B"


def test_a_stop_reaches_every_part_as_stopped():
    halted = []
    job = Job(stop=lambda: bool(halted))
    job.part(0.0, 1.0).check()
    halted.append(True)
    for each in (job, job.part(0.0, 0.5), job.part(0.0, 0.5).part(0.0, 0.5)):
        assert each.stopping()
        with pytest.raises(Stopped, match=r"^Stopped\.$"):
            each.check()


def test_callbacks_come_at_most_ten_times_a_second_within_a_stage_and_at_its_end(clock):
    seen = []
    job = Job(seen.append)
    for done in range(1001):
        job.report("x", done / 1000)
        clock[0] += 0.001
    assert len(seen) <= 12 and seen[0].fraction == 0.0 and seen[-1].fraction == 1.0
    job.report("y")
    assert seen[-1].stage == "y"


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(), "Starting"),
        (Progress("x", 0.5, seconds_left=12.4), "x, 12 s left"),
        (Progress("x", 0.5, seconds_left=300.0), "x, 5 min left"),
        (Progress("x", 1.0, seconds_left=0.0), "x"),
        (Progress("x", 0.5, 2**20, 2**21, 1e6, 1.0), "x: 1 MiB of 2 MiB, 1.00 MB/s, 1 s left"),
    ],
)
def test_progress_in_words(progress, text):
    assert progress.text == text


def test_a_worker_ends_as_complete_stopped_or_failed():
    class Steps(Worker):
        fails = False

        def work(self):
            self.report("one", 0.5)
            if self.fails:
                raise SpecVizError("No.")
            self.check()
            self.report("two", 1.0)

    assert Steps().execute().status == "complete"
    failed = Steps()
    failed.fails = True
    assert (failed.execute().status, failed.error) == ("failed", "No.")
    stopped = Steps()
    stopped.stop()
    assert (stopped.execute().status, stopped.error) == ("stopped", None)


def test_a_task_hands_its_job_to_the_function_and_keeps_the_result():
    def add(job):
        job.report("Adding", 0.5)
        return 2 + 3

    task = Task(add)
    task.join(10)
    assert (task.status, task.result, task.progress.fraction) == ("complete", 5, 1.0)
