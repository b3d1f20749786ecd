"""From a folder of shards to a drafter: draft vocabulary, closed-form start, training, calibration.

Small machines allow only a few thousand steps, so most of a drafter's ability is put in before the first step:
its layers are the target's own last ones, and what must be guessed between them is fitted by ridge regression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from specviz.drafters.block_net import BlockConfig, BlockNet
from specviz.errors import SpecVizError
from specviz.training import block, causal, closed_form, loop
from specviz.training.corpus import Corpus
from specviz.training.features import Batch, TapStore, stored_layers
from specviz.training.target_parts import StockModel, TargetParts

DRAFT_VOCABULARY = 4096
BLOCK = 16


@dataclass(frozen=True)
class Setting:
    """What every recipe needs: the target's tensors, the data, and the draft vocabulary."""

    module: StockModel
    parts: TargetParts
    store: TapStore
    train: list[int]
    held_out: list[int]
    draft_ids: torch.Tensor

    @property
    def calibrating(self) -> list[int]:
        """The half of the held-out conversations that confidences are calibrated on."""
        return [n for n in self.held_out if _calibrates(self.store, n)]

    @property
    def judging(self) -> list[int]:
        """The other half: nothing was fitted to them."""
        return [n for n in self.held_out if not _calibrates(self.store, n)]

    def conversations(self) -> list[int]:
        """Those to train on; more where the corpus has grown."""
        if self.store.refresh():
            known = {*self.train, *self.held_out}
            train, held_out = self.store.split()
            self.train.extend(n for n in train if n not in known)
            self.held_out.extend(n for n in held_out if n not in known)
        return self.train

    @property
    def head(self) -> torch.Tensor:
        return self.parts.head[self.draft_ids].contiguous()


def setting(module: StockModel, store: TapStore, draft_ids: torch.Tensor | None = None) -> Setting:
    """module: a stock Llama-like target. draft_ids: default, the most frequent tokens of the training answers."""
    train, held_out = store.split()
    mixed = [train[i] for i in torch.randperm(len(train), generator=torch.Generator().manual_seed(3)).tolist()]
    if draft_ids is None:
        draft_ids = draft_vocabulary(store, train, module.config.vocab_size)
    return Setting(module, TargetParts.of(module), store, mixed, held_out, draft_ids)


def draft_vocabulary(
    store: TapStore, chosen: Sequence[int], vocab_size: int, size: int = DRAFT_VOCABULARY
) -> torch.Tensor:
    """The `size` most frequent tokens of the answers, ascending."""
    counts = np.zeros(vocab_size, np.int64)
    for n in chosen:
        corpus, i = _conversation(store, n)
        counts += np.bincount(corpus.conversation(i)[int(corpus.answer_start[i]) :], minlength=vocab_size)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int64))


def _conversation(store: TapStore, n: int) -> tuple[Corpus, int]:
    shard, i = store.index[n]
    return store.shards[shard][0], i


def _calibrates(store: TapStore, n: int) -> bool:
    corpus, i = _conversation(store, n)
    return corpus.for_calibration(i)


def conversation_batches(store: TapStore, chosen: Sequence[int], rows: int = 8) -> Iterator[Batch]:
    """The chosen conversations, `rows` at a time, in their order."""
    return (store.batch(chosen[i : i + rows]) for i in range(0, len(chosen), rows))


# ------------------------------------------------------------------------------- parallel and hybrid


def block_net(s: Setting, layers: int = 2, serial: int | None = None) -> BlockNet:
    """An untrained net for the target: its last `layers` layers, three taps, a serial head."""
    c = s.module.config
    stored = stored_layers(c.num_hidden_layers)
    taps = tuple(t for t in stored[:-1] if t < c.num_hidden_layers - layers)
    if not taps:
        raise SpecVizError(
            f"A block drafter of {layers} layers needs a target of at least {layers + 1}: this one has "
            f"{c.num_hidden_layers}."
        )
    taps = tuple(sorted({taps[len(taps) // 4], taps[3 * len(taps) // 4], taps[-1]}))
    config = BlockConfig(
        hidden_size=c.hidden_size,
        vocab_size=c.vocab_size,
        layers=layers,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        ffn=c.intermediate_size,
        taps=taps,
        block=BLOCK,
        rope_theta=c.rope_parameters["rope_theta"],
        rms_eps=c.rms_norm_eps,
        serial=c.hidden_size if serial is None else serial,
    )
    net = BlockNet(config, s.draft_ids)
    closed_form.start_from_layers(net, s.module, range(c.num_hidden_layers - layers, c.num_hidden_layers))
    closed_form.start_fusion(net, taps[-1])
    return net


def columns(net: BlockNet, s: Setting) -> list[int]:
    """Where the net's taps lie among the stored ones."""
    stored = stored_layers(s.module.config.num_hidden_layers)
    return [stored.index(t) for t in net.config.taps]


def start_block(net: BlockNet, s: Setting, limit: int = 1000) -> dict[str, float]:
    """The closed-form start. `limit` conversations at most for the costlier fits. Returns shares explained."""
    found, where = {}, columns(net, s)
    net.eval()
    found["inputs"] = closed_form.start_inputs(
        net, s.parts.embedding, conversation_batches(s.store, s.train), where, where[-1]
    )
    examples = closed_form.block_examples(net, s.parts.embedding, conversation_batches(s.store, s.train[:limit]), where)
    found["before refit"], found["last layer"] = closed_form.refit_last_layer(net, examples)
    found["serial"] = closed_form.start_serial(net, s.parts, conversation_batches(s.store, s.train[-limit:]), where)
    return found


def train_block(
    net: BlockNet, s: Setting, recipe: block.BlockRecipe, share_done: Callable[[loop.Progress], float], **options
) -> loop.Progress:
    """Train on random blocks; options as of `loop.train`."""
    where, head = columns(net, s), s.head

    def step_loss(batch, step, generator):
        slots = recipe.block_lengths[step % len(recipe.block_lengths)]
        blocks = block.draw_blocks(batch, max(2, recipe.slots_per_row // slots), slots, generator)
        return block.block_loss(net, s.parts, head, batch, blocks, where, recipe)

    return loop.train(net, s.store, s.conversations, step_loss, recipe, share_done=share_done, **options)


@torch.no_grad()
def alpha_block(
    net: BlockNet,
    s: Setting,
    slots: int = 8,
    limit: int = 96,
    seed: int = 5,
    chosen: Sequence[int] | None = None,
) -> dict[str, list[float]]:
    """Teacher-forced overlap by slot on held-out (or the chosen) conversations, of the parallel pass and refined.
    p is renormalised over the draft vocabulary; `coverage` is the probability that this keeps."""
    generator, where, head = torch.Generator().manual_seed(seed), columns(net, s), s.head
    recipe, count = block.BlockRecipe(), 0
    sums: dict[str, torch.Tensor] = {}
    net.eval()
    for batch in conversation_batches(s.store, (s.judging if chosen is None else chosen)[:limit]):
        blocks = block.draw_blocks(batch, 16, slots, generator)
        for name, values in block.block_loss(net, s.parts, head, batch, blocks, where, recipe)[1].items():
            sums[name] = sums[name] + values if name in sums else values
        count += 1
    return {name: [round(x, 4) for x in (total / count).tolist()] for name, total in sums.items()}


# ----------------------------------------------------------------------------------- autoregressive


def causal_net(s: Setting, layers: Sequence[int] | None = None) -> causal.CausalNet:
    """An untrained small causal model of some of the target's layers: by default the first and the last two."""
    c = s.module.config
    layers = (0, c.num_hidden_layers - 2, c.num_hidden_layers - 1) if layers is None else layers
    config = BlockConfig(
        hidden_size=c.hidden_size,
        vocab_size=c.vocab_size,
        layers=len(layers),
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        ffn=c.intermediate_size,
        taps=(),
        block=BLOCK,
        rope_theta=c.rope_parameters["rope_theta"],
        rms_eps=c.rms_norm_eps,
    )
    net = causal.CausalNet(config, s.draft_ids)
    closed_form.start_from_layers(net, s.module, layers)
    return net


def start_causal(net: causal.CausalNet, s: Setting, limit: int = 1000) -> dict[str, float]:
    """The closed-form start: a bridge over the layers left out, then the last layer refitted."""
    stored = stored_layers(s.module.config.num_hidden_layers)
    net.eval()
    bridge = closed_form.start_bridge(
        net, s.parts, lambda: conversation_batches(s.store, s.train[:limit]), len(stored) - 2
    )
    examples = closed_form.causal_examples(net, s.parts.embedding, conversation_batches(s.store, s.train[:limit]))
    before, after = closed_form.refit_last_layer(net, examples)
    return {"bridge": bridge, "before refit": before, "last layer": after}


def train_causal(
    net: causal.CausalNet,
    s: Setting,
    recipe: causal.CausalRecipe,
    share_done: Callable[[loop.Progress], float],
    **options,
) -> loop.Progress:
    """Train on whole conversations; options as of `loop.train`."""
    head = s.head

    def step_loss(batch, step, generator):
        return causal.causal_loss(net, s.parts, head, batch, recipe)

    return loop.train(net, s.store, s.conversations, step_loss, recipe, share_done=share_done, **options)


@torch.no_grad()
def alpha_causal(net: causal.CausalNet, s: Setting, limit: int = 96) -> float:
    """Teacher-forced overlap on held-out answers (p renormalised over the draft vocabulary)."""
    recipe, found = causal.CausalRecipe(), []
    net.eval()
    for batch in conversation_batches(s.store, s.judging[:limit]):
        found.append(float(causal.causal_loss(net, s.parts, s.head, batch, recipe)[1]["autoregressive"]))
    return round(sum(found) / len(found), 4)


@torch.no_grad()
def coverage(s: Setting, limit: int = 24) -> float:
    """The share of the target's own probability that lies on the draft vocabulary, on held-out answers."""
    found = []
    for batch in conversation_batches(s.store, s.judging[:limit], rows=2):
        chosen = batch.before_answer
        logits = functional.linear(s.parts.states(batch.taps[:, :, -1][chosen][::4]), s.parts.head)
        found.append(torch.softmax(logits, -1)[:, s.draft_ids].sum(-1))
    return round(float(torch.cat(found).mean()), 4)


def work_folder(root: Path, kind: str) -> Path:
    """Where a training run keeps its checkpoint."""
    folder = root / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder
