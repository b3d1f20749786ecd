"""Verify lengths: exact against brute force, blind to what they must not see, ties, the counterexample."""

import itertools
import random
from functools import partial

import pytest

from specviz.errors import SettingsError
from specviz.serving import counterexample
from specviz.serving.scheduling import (
    RoundCosts,
    StepCosts,
    SurvivalEstimate,
    best_schedule,
    budget,
    candidates,
    likeliest_schedule,
    prefix_schedule,
    survivals,
    uniform_goodput,
)


def theta(rows, lengths, cost):
    tau = sum(1 + sum(a[:n]) for a, n in zip(rows, lengths))
    return tau / cost(sum(1 + n for n in lengths))


def brute_force(rows, cost):
    """The greatest theta of all lengths."""
    return max(theta(rows, lengths, cost) for lengths in itertools.product(*(range(len(a) + 1) for a in rows)))


def random_case(chance, most_rows=4, most_slots=4):
    rows = [
        survivals(chance.random() for _ in range(chance.randint(0, most_slots)))
        for _ in range(chance.randint(1, most_rows))
    ]
    seconds, table = 0.0, []
    for _ in range(most_rows * (most_slots + 1)):
        seconds += chance.choice([0.0, 0.01, 0.2, 1.0]) * chance.random()
        table.append(0.5 + seconds)
    return rows, StepCosts(tuple(range(1, len(table) + 1)), tuple(table))


def test_the_best_schedule_is_the_brute_force_maximum_on_any_cost():
    """600 random cases, with steps and plateaus in the cost: the walk over sorted survivals misses nothing."""
    chance = random.Random(1)
    for _ in range(600):
        rows, cost = random_case(chance)
        found = best_schedule(rows, cost)
        assert theta(rows, found.lengths, cost) == pytest.approx(brute_force(rows, cost), rel=1e-12)
        assert found.theta == pytest.approx(theta(rows, found.lengths, cost), rel=1e-12)
        assert found.expected == pytest.approx(sum(1 + sum(a[:n]) for a, n in zip(rows, found.lengths)), rel=1e-12)


def test_the_early_stop_is_the_maximum_wherever_cost_is_convex():
    """On a straight or convex cost theta has one peak, and stopping at the first drop finds it."""
    chance = random.Random(2)
    for _ in range(300):
        rows, _ = random_case(chance)
        fixed, slope, bend = chance.random(), chance.random(), chance.random() / 10
        cost = StepCosts(tuple(range(1, 21)), tuple(fixed + slope * n + bend * n * n for n in range(1, 21)))
        assert prefix_schedule(rows, cost).theta == pytest.approx(brute_force(rows, cost), rel=1e-9)


def test_the_early_stop_sticks_at_a_step_and_an_older_budget_does_not():
    """A cost that doubles from one token to two: nothing is verified at the first drop, while four more pay."""
    cost = StepCosts((1, 2, 3, 4, 5), (1.0, 2.0, 2.0, 2.0, 2.0))
    rows = [survivals([0.95] * 4)]
    assert prefix_schedule(rows, cost).lengths == (0,)
    assert best_schedule(rows, cost).lengths == (4,)
    most = budget(rows, cost)
    assert most == 4
    assert likeliest_schedule([survivals([0.9, 0.5, 0.5, 0.5])], most, cost).lengths == (4,)
    assert likeliest_schedule(rows, 0, cost).lengths == (0,)


def test_the_marginal_rule_is_the_rule():
    """A candidate raises theta exactly if its survival exceeds theta * (cost(B + 1) - cost(B))."""
    chance = random.Random(3)
    seen = 0
    for _ in range(200):
        rows, cost = random_case(chance)
        found = best_schedule(rows, cost)
        before = found.plain
        for step in found.steps:
            if abs(step.survival - step.needed) > 1e-9:
                assert (step.survival > step.needed) == (step.theta > before)
                seen += 1
            before = step.theta
    assert seen > 500


class Watched(list):
    """A list of survivals that notes how far it was read."""

    read = -1

    def __getitem__(self, i):
        self.read = max(self.read, i)
        return super().__getitem__(i)


@pytest.mark.parametrize("scheduler", ["prefix", "likeliest"])
def test_no_survival_is_read_before_the_slot_in_front_of_it_is_admitted(scheduler):
    """Non-anticipating by construction: slot j + 1 is looked at only if slot j is verified (or is what stopped)."""
    chance = random.Random(4)
    for _ in range(200):
        rows, cost = random_case(chance)
        rows = [Watched(a) for a in rows]
        found = prefix_schedule(rows, cost) if scheduler == "prefix" else likeliest_schedule(rows, 3, cost)
        for a, length in zip(rows, found.lengths):
            assert a.read <= length


def test_what_comes_after_the_stop_changes_nothing():
    """Later survivals replaced by any others: the early stop and the budgeted choice decide the same about a slot."""
    chance = random.Random(5)
    for _ in range(200):
        rows, cost = random_case(chance)
        for schedule in (partial(prefix_schedule, cost=cost), partial(likeliest_schedule, most=3, cost=cost)):
            lengths = schedule(rows).lengths
            for r, a in enumerate(rows):
                for slot in range(len(a)):
                    other = [*a[: slot + 1], *(a[slot] * x for x in survivals(chance.random() for _ in a[slot + 1 :]))]
                    again = schedule([*rows[:r], other, *rows[r + 1 :]]).lengths
                    assert (lengths[r] > slot) == (again[r] > slot)


def test_ties_go_by_slot_then_by_request():
    assert [(r, j) for r, j, _ in candidates([[0.5, 0.5], [0.5, 0.5], [0.9, 0.5]])] == [
        (2, 0),
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    assert likeliest_schedule([[0.5, 0.5], [0.5, 0.5]], 3, lambda n: 1.0).lengths == (2, 1)


def test_survivals_of_nothing_and_of_zero_are_left_out():
    assert best_schedule([], lambda n: 1.0).lengths == ()
    assert prefix_schedule([[], [0.0, 0.0]], lambda n: 1.0).lengths == (0, 0)


def test_the_papers_counterexample():
    """Looking ahead 0.85 of the first token comes out where p is 0.70; stopping early it is 0.70: exactly, and run."""
    assert counterexample.law(best_schedule) == pytest.approx((0.85, 0.15))
    assert counterexample.law(prefix_schedule) == pytest.approx((0.70, 0.30))
    assert counterexample.trials(best_schedule, 4000)[0] / 4000 == pytest.approx(0.85, abs=0.03)
    assert counterexample.trials(prefix_schedule, 4000)[0] / 4000 == pytest.approx(0.70, abs=0.03)


def test_uniform_goodput_is_the_best_single_k():
    rates = [0.7, 0.5, 0.3]
    flat = uniform_goodput(rates, 1, lambda k: 1.0)
    assert flat == 3
    assert uniform_goodput(rates, 8, lambda k: 8 * (k + 1)) == 0
    assert uniform_goodput(rates, 2, lambda k: 1 + 0.45 * k) == 1
    # kept unless another is better by more than the hysteresis
    assert uniform_goodput(rates, 2, lambda k: 1 + 0.45 * k, before=0) == 1
    assert uniform_goodput([0.03], 1, lambda k: 1.0, before=0) == 0
    assert uniform_goodput([], 1, lambda k: 1.0) == 0


def test_step_costs_never_fall_and_go_on_past_the_end():
    cost = StepCosts((1, 2, 4, 8), (1.0, 3.0, 2.0, 4.0))
    assert [cost(n) for n in (0, 1, 2, 4, 8)] == [0.0, 1.0, 2.5, 2.5, 4.0]
    assert cost(3) == 2.5 and cost(6) == pytest.approx(3.25)
    assert cost(16) > cost(8)
    assert StepCosts((4,), (2.0,))(100) == 2.0
    for bad in (((), ()), ((2, 1), (1.0, 1.0)), ((1, 2), (1.0,)), ((0, 1), (1.0, 1.0)), ((1,), (float("nan"),))):
        with pytest.raises(SettingsError, match="step table"):
            StepCosts(*bad)


def test_round_costs_count_serial_and_parallel_drafts():
    target, draft = StepCosts((1, 100), (1.0, 100.0)), StepCosts((1, 100), (0.1, 10.0))
    serial, parallel = RoundCosts(target, draft, fixed=0.5), RoundCosts(target, draft, serial=False)
    assert serial.drafting([3, 1]) == pytest.approx(0.2 + 0.1 + 0.1)
    assert parallel.drafting([3, 1]) == pytest.approx(0.4)
    assert serial.round([3, 1]) == pytest.approx(0.4 + 6 + 0.5)
    assert parallel.round([1, 1], drafted=[3, 3]) == pytest.approx(0.6 + 4)
    assert RoundCosts(target).drafting([3]) == 0
    hybrid = RoundCosts(target, draft, fixed=0.5, draft_more=StepCosts((1, 100), (0.01, 1.0)))
    assert hybrid.drafting([3, 1]) == pytest.approx(0.2 + 0.01 + 0.01)
    assert serial.verifying(2, spent=serial.drafting([1, 1]))(5) == pytest.approx(serial.round([1, 1]) - 4 + 5)
    for costs in (serial, parallel, hybrid):  # added one after the other, drafts cost what they cost together
        grown = costs.one_more(0, 1, 0) + costs.one_more(0, 2, 1) + costs.one_more(1, 1, 2) + costs.one_more(2, 1, 3)
        assert grown == pytest.approx(costs.drafting([3, 1]))


def test_survival_is_learnt_from_verdicts_and_a_request_has_its_own():
    """Ninety percent of first drafts survive, then half; one request always survives, and stands out."""
    chance, estimate = random.Random(6), SurvivalEstimate(3)
    assert estimate.of() == pytest.approx([0.5, 0.25, 0.125])
    for _ in range(400):
        accepted = 0
        while accepted < 3 and chance.random() < (0.9, 0.5, 0.5)[accepted]:
            accepted += 1
        estimate.observe(1, 3, accepted)
    assert estimate.conditional()[0] == pytest.approx(0.9, abs=0.12)
    assert estimate.conditional()[1] == pytest.approx(0.5, abs=0.2)
    for _ in range(30):
        estimate.observe(2, 3, 3)
    assert estimate.of(2)[2] > estimate.of(1)[2] + 0.2
    estimate.forget(2)
    assert estimate.of(2) == estimate.of()


def test_survivals_are_held_in_range():
    assert survivals([0.5, 1.5, -1, 0.9]) == [0.5, 0.5, 0.0, 0.0]


# ------------------------------------------------------------------------------------ prompts in the same pass

BUSY = RoundCosts(StepCosts((1, 8, 32, 128), (0.034, 0.036, 0.0814, 0.29)), StepCosts((1, 64), (0.006, 0.02)), False)
"""Flat to eight tokens, then 2 ms a token: what two cores do."""


def test_a_prompt_in_the_pass_is_paid_for_by_itself():
    """Verifying nothing costs what it does alone; a draft costs what it does where the prompt has brought it."""
    alone, beside = BUSY.verifying(4), BUSY.verifying(4, 64)
    assert beside(4) == pytest.approx(alone(4))
    assert beside(5) - beside(4) == pytest.approx(BUSY.target(69, 4) - BUSY.target(68, 4))
    assert BUSY.prefill(4, 0) == 0 and BUSY.prefill(0, 64) == 0


def test_drafts_are_spared_while_a_prompt_is_read():
    """In the flat part of the cost four drafts of an even chance pay; where 64 prompt tokens come first, none does."""
    rates = [[0.5 ** (j + 1) for j in range(4)]]
    assert sum(best_schedule(rates, BUSY.verifying(1)).lengths) >= 2
    rows = [[0.3, 0.1] for _ in range(8)]
    assert sum(best_schedule(rows, BUSY.verifying(8, 64)).lengths) == 0


def test_a_busy_simulated_server_serves_more_with_the_scheduler_than_with_k_2():
    """Requests with long prompts arrive faster than they can be served: drafts must not hold up the reading."""
    from specviz.serving.engines import SurvivalModel
    from specviz.serving.load_test import LoadTestRequest, simulate
    from specviz.serving.requests import ServerLimits

    order = LoadTestRequest(
        pair="toy",
        drafter="ngram",
        policies=("fixed:2", "prefix"),
        rate=4.0,
        seconds=6.0,
        k=4,
        max_k=7,
        lengths=(32, 64),
        rows=16,
    )
    chances = SurvivalModel(tuple(0.75 * (1 - i / 18) for i in range(7)), 0.25, True)
    fixed, prefix = (o.summary for o in simulate(order, BUSY, chances, ServerLimits(16, 1024, chunk=64), 200))
    assert prefix.finished == fixed.finished
    assert prefix.tokens_per_second > 1.02 * fixed.tokens_per_second
