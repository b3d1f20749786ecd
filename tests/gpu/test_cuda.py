"""What only a CUDA GPU can show: the same texts as on the CPU, graphs that say what eager passes say, times by events,
measured roofs. Skipped without one."""

import itertools

import pytest
import torch

from specviz.drafters import autoregressive, base
from specviz.drafters.base import Request
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.ngram import NgramDrafter
from specviz.drafters.parallel import ParallelDrafter
from specviz.engine import judging
from specviz.engine.loop import decode
from specviz.engine.model_store import ModelStore
from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.hardware import ceilings, machine
from specviz.models.graphs import GraphCache, Recordings
from specviz.models.recorder import CudaRecorder
from specviz.sampling import transfer
from specviz.sampling.distributions import dense
from specviz.trace.records import Settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")


@pytest.mark.parametrize("drafter", ["autoregressive", "ngram", "first-layers"])
@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_texts_are_those_of_the_cpu(drafter, rows):
    settings = Settings(k=4, max_new_tokens=40)

    def tokens(device):
        order = RunRequest("toy", drafter, "the cat sees", settings, rows=rows, device=device, precision="fp32")
        run = Run(order, ModelStore()).execute()
        assert run.status == "complete", run.error
        return [run.trace.token_ids(row) for row in range(rows)]

    assert tokens("cuda") == tokens("cpu")


def block(kind, target, settings):
    """A block drafter of random weights for `small`, on the GPU."""
    from specviz.drafters.block_net import BlockConfig, BlockNet

    torch.manual_seed(1)
    net = BlockNet(
        BlockConfig(
            hidden_size=128,
            vocab_size=300,
            layers=2,
            heads=4,
            kv_heads=2,
            head_dim=32,
            ffn=192,
            taps=(0, 2),
            block=8,
            serial=64,
        ),
        torch.arange(0, 300, 3),
    )
    for p in net.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=0.1)
    return kind(net.cuda().eval(), target, settings)


def small(vocabulary=300, layers=4):
    """A random Llama on the GPU in fp32, products in full precision."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from specviz.models.causal import CausalModel

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    return CausalModel(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=1024,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        ).cuda()
    )


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
        for round_ in decode(
            m, NgramDrafter(300, m.device), prompts, Settings(k=k, max_new_tokens=40), eos_ids=frozenset(), record=False
        ):
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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", [ParallelDrafter, HybridDrafter])
def test_block_drafters_draft_from_graphs_what_they_draft_eagerly(kind, temperature):
    """Three rows with their own K and uneven commits: q and logits of every slot agree, and the tokens where no two
    logits are nearly tied."""
    target, settings = small(), Settings(temperature=temperature)
    graphed, eager = block(kind, target, settings), block(kind, target, settings)
    eager.graphs = None
    anchors = [7, 8, 9]
    for drafter in (graphed, eager):
        for row in range(3):
            taps = torch.full((2, 256), 0.1 * (row + 1), device="cuda")
            drafter.start(row, [1, 2, anchors[row]], taps, 200)
    for step in range(12):
        rows = [r for r in range(3) if (step + r) % 3 or step % 4 == 0]
        uniforms = {r: tuple(0.1 + 0.13 * j for j in range(1 + (step + r) % 6)) for r in rows}
        requests = [Request(r, anchors[r], len(us), us) for r, us in uniforms.items()]
        a, b = (drafter.propose(requests).on_host() for drafter in (graphed, eager))
        for x, y in zip(a.draft_logits, b.draft_logits):
            x, y = dense(x), dense(y)
            assert (x - y)[x.isfinite()].abs().max() < 1e-3
        for row in rows:
            emitted = [(step + row + j) % 300 for j in range(1 + (step + row) % 4)]
            taps = torch.randn(len(emitted), 256, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
            for drafter in (graphed, eager):
                drafter.commit(row, emitted, taps)
            anchors[row] = emitted[-1]
    assert graphed.graphs.replayed == 12 and graphed.graphs.recorded < 12, graphed.graphs.note


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["plain", "ngram", "first layers", "parallel", "hybrid"])
def test_a_round_waits_for_the_gpu_once(name, temperature, monkeypatch):
    """CUDA itself raises at everything else that waits; only where a graph is recorded may it be waited for."""
    from specviz.drafters.autoregressive import first_layers

    target, settings = small(), Settings(k=4, temperature=temperature, max_new_tokens=120)
    drafter = {
        "plain": lambda: None,
        "ngram": lambda: NgramDrafter(300, target.device),
        "first layers": lambda: first_layers(target, target.first(1), settings),
        "parallel": lambda: block(ParallelDrafter, target, settings),
        "hybrid": lambda: block(HybridDrafter, target, settings),
    }[name]()
    reads, watching = [], False

    def waiting(function):
        """The function, which may wait."""

        def called(*arguments):
            torch.cuda.set_sync_debug_mode("default")
            found = function(*arguments)
            torch.cuda.set_sync_debug_mode("error" if watching else "default")
            return found

        return called

    def to_host(*parts):
        reads.append(len(parts))
        return waiting(transfer.to_host)(*parts)

    for reader in (judging, base, autoregressive):
        monkeypatch.setattr(reader, "to_host", to_host)
    monkeypatch.setattr(Recordings, "_record", waiting(Recordings._record))
    rounds = itertools.islice(
        decode(target, drafter, [[1, 2, 3, 1, 2, 3]], settings, eos_ids=frozenset(), record=False), 20
    )
    next(rounds)
    watching = True
    try:
        torch.cuda.set_sync_debug_mode("error")
        assert len(list(rounds)) == 19
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(reads) == 20


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
    order = RunRequest(
        "toy", "autoregressive", "the cat", Settings(k=3, max_new_tokens=20), device="cuda", precision="fp32"
    )
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
