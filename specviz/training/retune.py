"""Retune the hybrid drafter on one's own prompts: the target answers them, the drafter learns from the answers.

Every fourth prompt is held out: its answers are never trained on and judge the outcome, before and after. A part of
the shipped corpus' held-out texts shows what was forgotten. Retuning changes which drafts are made, never
what comes out: that is checked too. (Online Speculative Decoding, arXiv 2310.07177, does the same while it serves.)
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specviz import paths
from specviz.drafters import checkpoints, from_folder
from specviz.drafters.block_net import BlockNet
from specviz.drafters.names import trained
from specviz.engine.loop import decode
from specviz.engine.model_store import STORE, ModelStore
from specviz.engine.prompts import encode
from specviz.errors import SettingsError, SpecVizError
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.models.causal import CausalModel
from specviz.trace.records import MAX_K, Settings
from specviz.training import block, evaluate, features, loop, recipes
from specviz.training.corpus import Corpus, judging
from specviz.worker import Worker

FEWEST, MOST = 8, 200
"""Prompts: with fewer than eight nothing can be said about those held out."""
HELD_OUT = 4
"""One prompt in this many is held out."""
ROWS = 8
"""Prompts decoded at a time while the target writes."""
OLD_DOMAIN = 24
"""Held-out conversations of the shipped corpus that show what was forgotten."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class RetuneOrder:
    """What to retune on."""

    prompts: tuple[str, ...]
    """User turns"""
    name: str = "retuned"
    """Of the new drafter: letters, digits, - and _"""
    seconds: float = 120.0
    """Of gradient steps"""
    k: int = 5
    answer_tokens: int = 96

    def __post_init__(self) -> None:
        texts = [p for p in self.prompts if p.strip()]
        if not FEWEST <= len(texts) <= MOST or len(texts) < len(self.prompts):
            raise SettingsError(f"Write {FEWEST} to {MOST} prompts, one a line and none empty; there are {len(texts)}.")
        if len(set(texts)) < len(texts):
            raise SettingsError("A prompt is there twice: one of them might be held out and the other trained on.")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", self.name):
            raise SettingsError("Give the drafter a name of up to 40 letters, digits, - and _.")
        if not 0 < self.seconds <= 86_400:
            raise SettingsError("Train for more than 0 seconds and at most a day.")
        if not 1 <= self.k <= MAX_K:
            raise SettingsError(f"K must be from 1 to {MAX_K}.")
        if not 16 <= self.answer_tokens <= 512:
            raise SettingsError("Answers can have 16 to 512 tokens.")


@dataclass(frozen=True)
class Judged:
    """One drafter on the held-out prompts, measured."""

    live: evaluate.Live
    overlap: list[float]
    """Teacher-forced sum(min(p, q)) by slot on the held-out answers, over the draft vocabulary"""
    old_overlap: list[float]
    """The same on held-out texts of the shipped corpus"""


@dataclass(frozen=True)
class Retuned:
    """The result of a retuning."""

    before: Judged
    after: Judged
    gain: tuple[float, float, float]
    """Of the mean acceptance length: the difference and its 95 % interval, paired over the held-out prompts"""
    prompts: int
    held_out: int
    answer_tokens: int
    """That were trained on"""
    steps: int
    seconds: float
    folder: Path

    @property
    def sentence(self) -> str:
        """The outcome in words. Claims nothing that the interval does not carry."""
        difference, low, high = self.gain
        a, b = (j.live.mean_acceptance_length for j in (self.before, self.after))
        verdict = "longer" if low > 0 else "shorter" if high < 0 else "no clear change"
        return (
            f"{a:.2f} tokens per target pass before, {b:.2f} after on {self.held_out} held-out prompts "
            f"({difference:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}: {verdict})."
        )


@dataclass(frozen=True)
class _Data:
    """What a retuning trains on and is judged on."""

    target: CausalModel
    setting: recipes.Setting
    trained_on: int
    """Prompts"""
    held_out: list[list[int]]
    """Prompts, as token ids"""
    judging: list[int]
    """Their conversations in the store"""
    old: list[int]
    """Conversations of the shipped corpus in the store"""
    plain: tuple[list[list[int]], float]
    """Of the held-out prompts, as `evaluate.plain_texts` returns it"""


def folder_of(name: str) -> Path:
    """Where retuned drafters are kept."""
    return paths.home() / "drafters" / name


class Retune(Worker):
    """A retuning as a job with stages, progress and Stop. `result` is set when it is complete.

    `alphas` grows while it trains: (steps, overlap by slot on what is being trained on).
    """

    keeps = False
    patience = 120.0
    """It takes minutes, and browsers let a tab in the background ask only once a minute."""

    def __init__(self, order: RetuneOrder, store: ModelStore = STORE):
        super().__init__()
        self.order, self.store = order, store
        self.result: Retuned | None = None
        self.alphas: list[tuple[int, list[float]]] = []

    def work(self) -> None:
        """Raises SpecVizError with a sentence."""
        order = self.order
        source = trained().get("hybrid")
        if source is None:
            raise SpecVizError("There is no hybrid drafter in assets/drafters to begin with.")
        self.report("Loading the target", 0.0)
        # the corpus, the closed forms and the gradient steps are all made for float32 on the CPU
        opened = self.store.open(find_pair(EMBEDDED).target, "cpu", "fp32", self.part(0.0, 0.0))
        target, net = opened.model, checkpoints.load_block_net(source)
        with tempfile.TemporaryDirectory(prefix="specviz-retune-") as scratch:
            folder = Path(scratch)
            data = self._data(target, [_tokens(opened.tokenizer, text) for text in order.prompts], folder, net)
            before = self._judge(source, data, "Measuring the drafter as it was", 0.45)
            done = self._train(net, data.setting)
            made = checkpoints.save(folder / "made", "hybrid", net, _about(source, data, done))
            after = self._judge(made, data, "Measuring the retuned drafter", 0.95)
            self.check()
            kept_at = _moved(made, folder_of(order.name))
        self.result = Retuned(
            before=before,
            after=after,
            gain=evaluate.gain(before.live, after.live),
            prompts=len(order.prompts),
            held_out=len(data.held_out),
            answer_tokens=data.setting.store.answer_tokens(data.setting.train),
            steps=done.step,
            seconds=done.seconds,
            folder=kept_at,
        )
        self.report("Done", 1.0)

    def _data(self, target: CausalModel, prompts: Sequence[list[int]], folder: Path, net: BlockNet) -> _Data:
        """Let the target answer, and store what it computed over the answers and over older texts."""
        held_out = [p for i, p in enumerate(prompts) if i % HELD_OUT == HELD_OUT - 1]
        trained_on = [p for i, p in enumerate(prompts) if i % HELD_OUT != HELD_OUT - 1]
        corpus = self._answers(target, [*trained_on, *held_out], self.order.answer_tokens)
        self._taps(target, corpus, folder / "0-own", (0.35, 0.4), "Reading the answers again, for what the target saw")
        self._taps(target, _old_domain(), folder / "1-shipped", (0.4, 0.45), "Reading older texts, to see what is lost")
        store = features.TapStore(folder)
        own, old = ([n for n, (shard, _) in enumerate(store.index) if shard == which] for which in (0, 1))
        split = len(trained_on) * (len(own) // len(prompts))
        setting = recipes.setting(target.module, store, net.draft_ids)
        setting.train[:] = own[:split]
        plain = evaluate.plain_texts(target, held_out, self._settings, ROWS)
        return _Data(target, setting, len(trained_on), held_out, own[split:], old, plain)

    def _judge(self, weights: Path, data: _Data, words: str, fraction: float) -> Judged:
        """Measure a drafter on the held-out prompts and texts."""
        self.report(words, fraction)
        net, opener = checkpoints.load_block_net(weights), from_folder.opener("hybrid", data.target, weights)
        part = self.part(fraction, fraction, words)
        live = evaluate.live(data.target, opener, data.held_out, self._settings, data.plain, part, ROWS)
        overlaps = [
            recipes.alpha_block(net, data.setting, chosen=chosen)["hybrid"] for chosen in (data.judging, data.old)
        ]
        return Judged(live, *overlaps)

    @property
    def _settings(self) -> Settings:
        return Settings(k=self.order.k, temperature=0.0, max_new_tokens=self.order.answer_tokens)

    def _answers(self, target: CausalModel, prompts: Sequence[list[int]], length: int) -> Corpus:
        """Each prompt answered greedily and at temperature 0.8; the answers of one prompt stand side by side."""
        texts: list[list[list[int]]] = [[] for _ in prompts]
        rounds, total = 0, 2 * -(-len(prompts) // ROWS) * length
        for temperature in (0.0, 0.8):
            settings = Settings(k=0, temperature=temperature, max_new_tokens=length)
            for at in range(0, len(prompts), ROWS):
                batch = prompts[at : at + ROWS]
                answers: list[list[int]] = [[] for _ in batch]
                for round_ in decode(target, None, batch, settings, record=False):
                    self.check()
                    for verdict in round_.rows:
                        answers[verdict.row] += verdict.emitted
                    rounds += 1
                    self.report(
                        f"The target answers the prompts ({at + len(batch)} of {len(prompts)}, at temperature "
                        f"{temperature:g})",
                        0.35 * rounds / total,
                    )
                for i, answer in enumerate(answers):
                    texts[at + i].append(batch[i] + answer)
        flat = [text for both in texts for text in both]
        starts = [len(prompt) for prompt in prompts for _ in range(2)]
        return Corpus(
            np.concatenate([np.array(t, np.uint32) for t in flat]),
            np.array([len(t) for t in flat], np.uint16),
            np.array(starts, np.uint16),
            np.tile(np.array([0.0, 0.8], np.float32), len(prompts)),
            np.full(len(flat), -1, np.int16),
        )

    def _taps(self, target: CausalModel, corpus: Corpus, path: Path, share: tuple[float, float], stage: str) -> None:
        features.compute(target, corpus, path, self.part(*share, stage))

    def _train(self, net: BlockNet, s: recipes.Setting) -> loop.Progress:
        """Gradient steps over the whole net, at a learning rate that forgets little."""
        begun = time.monotonic()

        def share(at: loop.Progress) -> float:
            self.check()
            passed = (time.monotonic() - begun) / self.order.seconds
            self.report(f"Training: step {at.step}", 0.5 + 0.45 * passed)
            return passed

        def report(at: loop.Progress) -> None:
            self.alphas.append((at.step, at.alphas["hybrid"]))

        net.requires_grad_(True)
        recipe = block.BlockRecipe(learning_rate=LEARNING_RATE, block_lengths=(4, 8), slots_per_row=64)
        try:
            return recipes.train_block(net, s, recipe, share, report=report, report_seconds=1.0)
        finally:
            net.requires_grad_(False)


def _tokens(tokenizer, text: str) -> list[int]:
    return list(encode(tokenizer, text.strip()).ids)


def _about(source: Path, data: _Data, done: loop.Progress) -> dict:
    """The card of the retuned drafter: its source's, and what it was retuned on."""
    card = {k: v for k, v in checkpoints.read(source)[3].items() if k not in ("format", "kind", "shape")}
    new = {"retuned_on": data.trained_on, "retuning_steps": done.step, "retuning_seconds": round(done.seconds)}
    return card | new


def _old_domain() -> Corpus:
    return Corpus.of(judging()[:OLD_DOMAIN])


def _moved(made: Path, folder: Path) -> Path:
    """The finished drafter at its place, whole or not at all; an older one of the same name is replaced."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part, old = folder.with_name(f".{folder.name}.part"), folder.with_name(f".{folder.name}.old")
        for leftover in (part, old):
            shutil.rmtree(leftover, ignore_errors=True)
        shutil.copytree(made, part)
        if folder.exists():
            os.replace(folder, old)
        os.replace(part, folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise SpecVizError(f"The retuned drafter could not be kept in {folder} ({error.strerror or error}).") from None
    return folder
