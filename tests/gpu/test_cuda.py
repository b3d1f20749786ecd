"""What only a CUDA GPU can show: the same texts as on the CPU, graphs that say what eager passes say, times by events,
measured roofs. Skipped without one."""

import pytest
import torch

from specviz.decoding import decode
from specviz.drafters.ngram import NgramDrafter
from specviz.hardware import ceilings, machine
from specviz.models.graphs import CudaRecorder, GraphCache
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


def small(vocabulary=300, layers=4):
    """A random Llama on the GPU in fp32, products in full precision."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from specviz.models.causal import CausalModel

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    return CausalModel(LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )).cuda())


def test_graphs_say_what_eager_passes_say():
    """Uneven passes over three rows with rollbacks, logits and taps, each pass launched from a graph."""
    graphed, eager = small(), small()
    eager.graphs = None
    caches = [m.new_cache() for m in (graphed, eager)]
    assert isinstance(caches[0], GraphCache) and isinstance(graphed.graphs._recorder, CudaRecorder)
    for m, cache in zip((graphed, eager), caches):
        for row in range(3):
            cache.add(row, 300)
            m.forward(cache, [row], [list(range(10 + row, 50 + 3 * row))], logits=False)
    for step in range(30):
        rows = [r for r in range(3) if (step + r) % 3 or step % 4 == 0]
        tokens = [[(step * 7 + r + j) % 300 for j in range(1 + (step + r) % 6)] for r in rows]
        a, b = (m.forward(cache, rows, tokens, taps=(0, 2)) for m, cache in zip((graphed, eager), caches))
        for x, y in zip((*a.logits, *a.taps), (*b.logits, *b.taps)):
            assert (x - y).abs().max() < 1e-4
        for cache in caches:
            for row, new in zip(rows, tokens):
                cache.truncate(row, cache.lengths[row] - len(new) // 2)
    assert graphed.graphs.replayed == 30, graphed.graphs.note
    assert 0 < graphed.graphs.recorded < 30


def test_runs_with_graphs_emit_the_texts_of_eager_runs():
    """Plain and drafted decoding of three rows, twice, so that the second run takes the first one's graphs."""
    prompts = [[1, 2, 3, 1, 2, 3], [4, 5, 4, 5, 4], [9] * 12]

    def texts(m, k):
        emitted = [[] for _ in prompts]
        for round_ in decode(m, NgramDrafter(300, m.device), prompts, Settings(k=k, max_new_tokens=40),
                             eos_ids=frozenset(), record=False):
            for verdict in round_.rows:
                emitted[verdict.row] += verdict.emitted
        return emitted

    graphed, eager = small(), small()
    eager.graphs = None
    for k in (0, 4):
        want = texts(eager, k)
        assert texts(graphed, k) == want
        recorded = graphed.graphs.recorded
        assert texts(graphed, k) == want
        assert graphed.graphs.recorded == recorded
    assert not graphed.graphs.reason


def test_a_store_that_does_not_fit_is_refused_before_it_is_made():
    from specviz.errors import MemoryBudgetError

    graphed = small()
    before = torch.cuda.memory_allocated()
    cache = graphed.new_cache()
    for row in range(64):
        cache.add(row, 2**28)
    with pytest.raises(MemoryBudgetError, match="lower the batch"):
        graphed.forward(cache, [0], [[1]])
    assert torch.cuda.memory_allocated() <= before + 2**20


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
