"""A round asks its device for numbers once, when the verdict is read: with a device that never answers.

Tensors of torch's "meta" device have shapes but no numbers: to read one fails, as does mixing it with a processor's
tensors. What such a device would let pass in silence, lists that become tensors there and copies that wait, is refused
by `Watched`. So rounds that run here never wait on a GPU but where `to_host` is called, which is counted.
"""

import itertools

import pytest
import test_published
import torch
from test_graphs import FakeRecorder
from test_training import TAPS, block_net, module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specviz.drafters import autoregressive, base
from specviz.drafters.autoregressive import AutoregressiveDrafter, first_layers
from specviz.drafters.block_graphs import BlockGraphs
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.lookup_first import LookupFirst
from specviz.drafters.ngram import NgramDrafter
from specviz.drafters.parallel import ParallelDrafter
from specviz.drafters.published import PublishedDrafter
from specviz.drafters.published_net import load_net
from specviz.engine import judging, loop
from specviz.models.causal import CausalModel
from specviz.models.graphs import Graphs
from specviz.trace.records import Settings

META = torch.device("meta")
ROUNDS = 6
PROMPTS = [[3, 14, 15, 9, 26, 5, 3, 14, 15], [7, 8, 9, 10, 11], [1, 2, 1, 2, 1, 2, 1]]


class Waits(Exception):
    """Something would wait for the device."""


class Calls(TorchFunctionMode):
    """Refuses lists that are copied to the device by themselves, which waits for it."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function in (torch.tensor, torch.as_tensor) and str(options.get("device", "cpu")) != "cpu":
            raise Waits(f"{function.__name__} makes a tensor on the device")
        if getattr(function, "__name__", "") in ("__getitem__", "__setitem__") and arguments[0].device == META:
            at = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            if any(isinstance(a, list) or (isinstance(a, torch.Tensor) and a.device != META) for a in at):
                raise Waits("an index is copied to the device")
        return function(*arguments, **options)


class Copies(TorchDispatchMode):
    """Refuses copies to the device that wait for it, and what is as long as its numbers say."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        name = function._schema.name.removeprefix("aten::")
        if name == "_to_copy":
            here, there = arguments[0].device, torch.device(options.get("device") or arguments[0].device)
            if here != there and not (here.type == "cpu" and options.get("non_blocking")):
                raise Waits(f"a copy from {here} to {there}")
        if name == "copy_" and arguments[0].device != arguments[1].device:
            raise Waits("a copy that waits")
        if name in ("nonzero", "masked_select", "_local_scalar_dense", "equal", "unique"):
            raise Waits(name)
        return function(*arguments, **options)


@pytest.fixture
def reads(monkeypatch):
    """Counts readings; each says that one draft was accepted wherever there was any, and zeros."""
    found = []

    def to_host(*parts):
        found.append(len(parts))
        accepted, *rest = parts
        drafts = rest[3 : 3 + len(accepted)] or [[]] * len(accepted)
        return [
            [min(1, len(of_row)) for of_row in drafts],
            *(part if isinstance(part, list) else [0] * len(part) for part in rest),
        ]

    for reader in (judging, base, autoregressive):
        monkeypatch.setattr(reader, "to_host", to_host)
    return found


def model(graphs):
    made = CausalModel(module().to(META))
    if graphs:
        made.graphs = Graphs(made._fused, made.layers, META, made.dtype, made.vocab_size, 500, FakeRecorder())
    return made


def block(kind, graphs):
    def make(target, settings):
        net = block_net().to(META)
        made = kind(net, target, settings)
        if graphs:
            made.graphs = BlockGraphs(made.fused, META, 500, FakeRecorder())
            made._cache = made.graphs.new_cache()
        return made

    return make


def drafters(graphs):
    return {
        "plain": lambda target, settings: None,
        "ngram": lambda target, settings: NgramDrafter(target.vocab_size, META),
        "autoregressive": lambda target, settings: AutoregressiveDrafter(model(graphs), target.vocab_size, settings),
        "first layers": lambda target, settings: first_layers(target, target.first(1), settings),
        "parallel": block(ParallelDrafter, graphs),
        "sampled": block(lambda n, t, s: ParallelDrafter(n, t, s, sampled=True), graphs),
        "hybrid": block(HybridDrafter, graphs),
        "lookup+parallel": lambda target, settings: LookupFirst(
            block(ParallelDrafter, graphs)(target, settings), target.vocab_size, META
        ),
    }


def rounds(make, settings, prompts, graphs, ks=None):
    target = model(graphs)
    drafter = make(target, settings)
    return target, drafter, watched(target, drafter, prompts, settings, ks)


def watched(target, drafter, prompts, settings, ks=None):
    """A few rounds. ks: of each row, or the settings' for all."""
    with Calls(), Copies():
        steps = loop.decode(
            target,
            drafter,
            prompts,
            settings,
            eos_ids=frozenset(),
            record=False,
            choose_k=None if ks is None else lambda row: ks[row.id],
        )
        played = list(itertools.islice(steps, ROUNDS))
        steps.close()
    return played


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        Settings(k=4, max_new_tokens=60, temperature=0.0),
        Settings(k=4, max_new_tokens=60, temperature=1.0),
        Settings(k=4, max_new_tokens=60, temperature=0.8, top_k=20, top_p=0.9),
    ],
    ids=["greedy", "sampled", "cut"],
)
@pytest.mark.parametrize("name", drafters(False))
def test_a_round_reads_once(reads, name, settings, graphs):
    """One row, three rows, and three with their own K."""
    for prompts, ks in ((PROMPTS[:1], None), (PROMPTS, None), (PROMPTS, (1, 4, 3))):
        reads.clear()
        target, drafter, played = rounds(drafters(graphs)[name], settings, prompts, graphs, ks)
        assert len(played) == len(reads) == ROUNDS
        if name not in ("plain", "ngram", "lookup+parallel"):
            assert all(v.proposed == (ks[v.row] if ks else 4) for r in played for v in r.rows)
        if graphs and name in ("parallel", "sampled", "hybrid"):
            assert drafter.graphs.replayed == ROUNDS and target.graphs.replayed == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", test_published.NAMES)
def test_a_round_with_a_published_drafter_reads_once(reads, name, temperature):
    _, target = test_published.case(name)
    settings = Settings(k=4, max_new_tokens=60, temperature=temperature)
    net = load_net(test_published.CASES / name, target).to(META)
    for part in ("embedding", "head", "draft_ids", "rotary"):
        if getattr(net, part) is not None:
            setattr(net, part, getattr(net, part).to(META))
    there = CausalModel(target.module.to(META))
    for prompts, ks in ((PROMPTS[:1], None), (PROMPTS, (1, 4, 3))):
        reads.clear()
        played = watched(
            there, PublishedDrafter(net, there, settings), [[t % 24 for t in p] for p in prompts], settings, ks
        )
        assert len(played) == len(reads) == ROUNDS


def test_a_drafter_that_looks_at_its_tokens_is_caught(reads):
    class Looks(ParallelDrafter):
        def propose(self, requests):
            found = super().propose(requests)
            found.tokens[0].tolist()
            return found

    with pytest.raises((Waits, NotImplementedError)):
        rounds(block(Looks, False), Settings(k=4, max_new_tokens=60), PROMPTS[:1], False)
    assert not reads


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: torch.tensor([1], device=META),
        lambda x: x[[0, 1]],
        lambda x: x.__setitem__([0], 1.0),
        lambda x: x[torch.tensor([0])],
        lambda x: torch.tensor([1]).to(META),
        lambda x: x.copy_(torch.zeros(3)),
        lambda x: x.cpu(),
        lambda x: bool(x.sum() > 0),
        lambda x: x[x > 0],
        lambda x: int(x.argmax()),
        lambda x: x.tolist(),
    ],
)
def test_everything_that_waits_is_refused(wait):
    x = torch.zeros(3, device=META)
    with pytest.raises((Waits, RuntimeError, NotImplementedError)), Calls(), Copies():
        wait(x)


def test_taps_are_asked_for():
    """So that the rounds above bring context to the block drafters at all."""
    assert block(ParallelDrafter, False)(model(False), Settings()).taps == TAPS
