"""Batched generation of the self-synthesised corpus: many conversations in lock-step on one Llama-like target.

Every row is a stream that is fed one token a step: the template, then a user turn that the target samples,
then its answer. A row that ends is replaced at once, so the batch stays full. Weights are of the type in which this
processor multiplies faster (bfloat16 moves the embedded target's distribution by about 0.01 in total variation), merged
where they share an input, and the residual stream stays float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from specviz.errors import SpecVizError
from specviz.training import turns
from specviz.training.compute_type import training_dtype
from specviz.training.corpus import COMPOSED, Corpus, distinct4

TOPICS = (
    "Write a Python function that",
    "Write a Python program to",
    "Write a JavaScript function that",
    "Write an SQL query that",
    "Explain this code:",
    "Write a bash script that",
    "Implement a function to sort",
    "Fix the bug in this code: def",
    "List five",
    "List ten ideas for",
    "Give me a list of",
    "Make a shopping list for",
    "What are the steps to",
    "Summarize the following text:",
    "Write a one-sentence summary of",
    "Give the main points of this passage:",
    "Solve this math problem:",
    "Calculate",
    "A train travels",
    "If a store sells",
    "Solve for x:",
    "How many",
    "Write a short story about",
    "Tell me a story about",
    "Write a poem about",
    "Write a dialogue between",
    "Correct the grammar in this sentence:",
    "Rewrite this text to make it more formal:",
    "Proofread this:",
    "Make this email more polite:",
    "Translate this sentence into French:",
    "Translate to Spanish:",
    "How do you say",
    "Explain to a child why",
    "What is the difference between",
    "Write an email to",
    "Describe the",
    "What causes",
)
"""How a fifth of the user turns begin. (The shipped corpus was made with these and some more of their kind.)"""
SHARE_WITH_TOPIC = 0.2
SHARE_COMPOSED = 0.5
"""Of the user turns: whole requests of turns.py. (None in the first 3,832 conversations of the shipped corpus.)"""
SMALLEST_DISTINCT4 = 0.6
SHORTEST_ANSWER = 16
SHORTEST_TURN = 5
"""Tokens of a user turn that the target writes"""
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
CANDIDATES = 200
"""Draws are made among this many likeliest tokens."""


class LockStep:
    """A stock Llama-like module, laid out for one token per row and step, with a cache of rows x capacity."""

    def __init__(self, module: torch.nn.Module, rows: int, capacity: int, dtype: torch.dtype | None = None):
        """dtype: of the weights; default: `training_dtype()`. Raises SpecVizError if the module is not built like
        Llama."""
        dtype, c = dtype or training_dtype(), module.config
        if getattr(c, "model_type", "") != "llama":
            raise SpecVizError(f"Batched generation knows Llama-like targets, not {getattr(c, 'model_type', '?')!r}.")
        self.heads, self.kv, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.size, self.eps = c.hidden_size, c.rms_norm_eps
        self.dtype, self.rows, self.capacity = dtype, rows, capacity
        self.embedding = module.get_input_embeddings().weight.detach().float()
        self.head = module.get_output_embeddings().weight.detach().to(dtype)
        self.final_norm = module.model.norm.weight.detach().float()
        self.layers = []
        for layer in module.model.layers:
            a, m = layer.self_attn, layer.mlp
            merged = torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]).detach().to(dtype)
            gate_up = torch.cat([m.gate_proj.weight, m.up_proj.weight]).detach().to(dtype)
            self.layers.append(
                (
                    layer.input_layernorm.weight.detach().float(),
                    merged,
                    a.o_proj.weight.detach().to(dtype),
                    layer.post_attention_layernorm.weight.detach().float(),
                    gate_up,
                    m.down_proj.weight.detach().to(dtype),
                )
            )
        shape = (len(self.layers), rows, self.kv, capacity, self.dim)
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        theta = c.rope_parameters["rope_theta"]
        angles = torch.arange(capacity)[:, None].float() * theta ** -(torch.arange(0, self.dim, 2).float() / self.dim)
        self.cos, self.sin = angles.cos(), angles.sin()

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Feed tokens [R] at positions [R] -> logits [R, V]."""
        rows, longest = torch.arange(self.rows), int(positions.max()) + 1
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        seen = (torch.arange(longest) <= positions[:, None])[:, None, None].expand(-1, -1, self.heads // self.kv, -1)
        x = self.embedding[tokens]
        width, narrow = self.heads * self.dim, self.kv * self.dim
        for i, (before, merged, out, after, gate_up, down) in enumerate(self.layers):
            q, k, v = functional.linear(self._norm(x, before), merged).split([width, narrow, narrow], -1)
            q = _rotate(q.view(-1, self.heads, self.dim), cos, sin)
            self.keys[i, rows, :, positions] = _rotate(k.view(-1, self.kv, self.dim), cos, sin)
            self.values[i, rows, :, positions] = v.view(-1, self.kv, self.dim)
            grouped = q.view(self.rows, self.kv, -1, self.dim)
            attended = functional.scaled_dot_product_attention(
                grouped, self.keys[i, :, :, :longest], self.values[i, :, :, :longest], attn_mask=seen
            )
            x = x + functional.linear(attended.reshape(self.rows, width), out).float()
            gate, up = functional.linear(self._norm(x, after), gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, down).float()
        return functional.linear(self._norm(x, self.final_norm), self.head).float()

    def _norm(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.size,), gain, self.eps).to(self.dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


@dataclass
class _Row:
    """One unfinished conversation."""

    tokens: list[int]
    forced: list[int]
    """Tokens to be fed before anything is sampled."""
    temperature: float
    topic: int
    answer_start: int = 0
    """0 while the target writes the user's turn."""
    fed: int = 0


@dataclass
class Tally:
    """Counts of the conversations that were kept, and of those dropped by reason."""

    kept: int = 0
    answer_tokens: int = 0
    looped: int = 0
    short: int = 0
    unfinished_prompt: int = 0
    seconds: float = 0.0
    parts: list[Corpus] = field(default_factory=list, repr=False)


class Synthesis:
    """The template, the filters and the draws; `run` makes one shard."""

    def __init__(self, module: torch.nn.Module, tokenizer, rows: int = 64, capacity: int = 320, seed: int = 0):
        self.model = LockStep(module, rows, capacity)
        self.random = np.random.default_rng(seed)
        # The chat template around a turn that can be recognised, cut into what stands before it and after it.
        mark = "SPECVIZ"
        turn = [{"role": "user", "content": mark}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before, after = text.split(mark)
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        self.before, self.after = self.encode(before), self.encode(after)
        self.end = self.after[0]
        if self._room(SHORTEST_TURN) < SHORTEST_ANSWER:
            raise SpecVizError(
                f"{capacity} tokens leave no room for a turn and an answer in this chat template: allow "
                f"at least {len(self.before) + SHORTEST_TURN + len(self.after) + SHORTEST_ANSWER} tokens."
            )
        self.topics = [self.encode(t) for t in TOPICS]
        vocabulary = range(len(self.model.embedding))
        self.plain = np.array([all(ord(c) < 128 for c in tokenizer.decode([i])) for i in vocabulary])
        self._rows = [self._fresh() for _ in range(rows)]

    def _fresh(self) -> _Row:
        """A new row. A given turn or beginning that leaves no room for an answer is not used: the target writes all."""
        temperature = float(self.random.choice(TEMPERATURES))
        if self.random.random() < SHARE_COMPOSED:
            turn = self.encode(turns.compose(self.random))
            if self._room(len(turn)) >= SHORTEST_ANSWER:
                first, *forced = [*self.before, *turn, *self.after]
                return _Row([first], forced, temperature, COMPOSED, answer_start=1 + len(forced))
        topic = int(self.random.integers(len(TOPICS))) if self.random.random() < SHARE_WITH_TOPIC else -1
        if topic >= 0 and self._room(len(self.topics[topic]) + SHORTEST_TURN) < SHORTEST_ANSWER:
            topic = -1
        first, *forced = [*self.before, *(self.topics[topic] if topic >= 0 else ())]
        return _Row([first], forced, temperature, topic)

    def _room(self, turn: int) -> int:
        """Tokens left for the answer behind a user turn of this many tokens."""
        return self.model.capacity - len(self.before) - turn - len(self.after)

    def run(self, conversations: int, stop: Callable[[], bool] = lambda: False) -> tuple[Corpus | None, Tally]:
        """One shard of about this many kept conversations, or fewer if stop() says so. Unfinished conversations are
        continued by the next call: otherwise long ones would be too rare."""
        rows, kept = self._rows, []
        tally, begun = Tally(), time.monotonic()
        while len(kept) < conversations and not stop():
            fed = torch.tensor([r.tokens[r.fed] for r in rows])
            logits = self.model.step(fed, torch.tensor([r.fed for r in rows]))
            drawn = self._draw(logits, rows)
            for i, row in enumerate(rows):
                row.fed += 1
                if row.forced:
                    row.tokens.append(row.forced.pop(0))
                elif self._take(row, drawn[i], tally):
                    if row.answer_start and self._good(row, tally):
                        kept.append(row)
                    rows[i] = self._fresh()
        tally.seconds = time.monotonic() - begun
        if not kept:
            return None, tally
        tally.kept, tally.answer_tokens = len(kept), sum(len(r.tokens) - r.answer_start for r in kept)
        smallest = np.uint16 if len(self.model.embedding) <= 65536 else np.uint32
        return Corpus(
            np.concatenate([np.array(r.tokens, dtype=smallest) for r in kept]),
            np.array([len(r.tokens) for r in kept], np.uint16),
            np.array([r.answer_start for r in kept], np.uint16),
            np.array([r.temperature for r in kept], np.float32),
            np.array([r.topic for r in kept], np.int16),
        ), tally

    def _draw(self, logits: torch.Tensor, rows: list[_Row]) -> list[int]:
        """The user's turn at temperature 1, top-p 0.95; the answer at the row's own temperature."""
        greedy = logits.argmax(-1)
        temperature = torch.tensor([r.temperature if r.answer_start else 1.0 for r in rows])
        top_p = torch.tensor([1.0 if r.answer_start else 0.95 for r in rows])
        values, ids = logits.topk(min(CANDIDATES, logits.shape[-1]), -1)
        probs = torch.softmax(values / temperature.clamp(min=1e-3)[:, None], -1)
        below = probs.cumsum(-1) - probs
        running = torch.where(below < top_p[:, None], probs, 0.0).cumsum(-1)
        u = torch.from_numpy(self.random.random(len(rows)).astype(np.float32))[:, None] * running[:, -1:]
        place = (running <= u).sum(-1, keepdim=True).clamp(max=ids.shape[-1] - 1)
        return torch.where(temperature == 0, greedy, ids.gather(1, place)[:, 0]).tolist()

    def _take(self, row: _Row, token: int, tally: Tally) -> bool:
        """Add a drawn token; True when the row has ended (finished, cut, or given up)."""
        row.tokens.append(token)
        if row.answer_start:
            answer = row.tokens[row.answer_start :]
            looping = len(answer) % 24 == 0 and len(answer) >= 72 and distinct4(answer) < 0.5
            return token == self.end or len(row.tokens) >= self.model.capacity or looping
        written = len(row.tokens) - len(self.before)
        if token == self.end:
            if written < SHORTEST_TURN:
                tally.unfinished_prompt += 1
                return True
            row.forced = list(self.after[1:])
            row.answer_start = len(row.tokens) + len(row.forced)
        elif written >= (64 if row.topic < 0 else 100) or self._room(written) < SHORTEST_ANSWER:
            tally.unfinished_prompt += 1
            return True
        return False

    def _good(self, row: _Row, tally: Tally) -> bool:
        answer = row.tokens[row.answer_start :]
        if len(answer) < SHORTEST_ANSWER:
            tally.short += 1
            return False
        if distinct4(answer) < SMALLEST_DISTINCT4:
            tally.looped += 1
            return False
        return bool(self.plain[row.tokens[len(self.before) :]].mean() >= 0.9)


def write_shards(
    synthesis: Synthesis,
    folder: Path,
    answer_tokens: int,
    conversations_per_shard: int = 128,
    progress: Callable[[int, Tally], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Generate shards into a folder until it holds this many answer tokens; an interrupted call is continued by the
    next. Returns the number of answer tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    known = sorted(folder.glob("*.npz"))
    total = sum(Corpus.load(path).answer_tokens for path in known)
    number = len(known)
    while total < answer_tokens and not stop():
        made, tally = synthesis.run(conversations_per_shard, stop)
        if made is None:
            break
        while (folder / f"s{number:04d}.npz").exists():
            number += 1
        made.save(folder / f"s{number:04d}.npz")
        total += made.answer_tokens
        if progress:
            progress(total, tally)
    return total
