"""What only a CUDA GPU can show: the same texts as on the CPU, times by events, measured roofs. Skipped without one."""

import pytest
import torch

from specviz.hardware import ceilings, machine
from specviz.runs import ModelStore, Order, Run
from specviz.trace import Settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")


@pytest.mark.parametrize("drafter", ["autoregressive", "ngram", "first-layers"])
@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_texts_are_those_of_the_cpu(drafter, rows):
    settings = Settings(k=4, max_new_tokens=40)

    def tokens(device):
        order = Order("toy", drafter, "the cat sees", settings, rows=rows, device=device, precision="fp32")
        run = Run(order, ModelStore()).execute()
        assert run.status == "complete", run.error
        return [run.trace.token_ids(row) for row in range(rows)]

    assert tokens("cuda") == tokens("cpu")


def test_every_round_has_measured_times():
    order = Order("toy", "autoregressive", "the cat", Settings(k=3, max_new_tokens=20), device="cuda", precision="fp32")
    trace = Run(order, ModelStore()).execute().trace
    assert all(r.draft_seconds > 0 and r.verify_seconds > 0 for r in trace.rounds if r.draft_tokens)


def test_the_roofs_are_a_gpus():
    roofs = ceilings.measure("cuda", "bf16", quick=True)
    assert roofs.bandwidth > 50e9
    assert roofs.flops > roofs.bandwidth


def test_a_timer_reads_events():
    timer = machine.clock("cuda")
    with timer.section("product"):
        a = torch.randn(2048, 2048, device="cuda")
        _ = a @ a
    assert timer.seconds("product") > 0
