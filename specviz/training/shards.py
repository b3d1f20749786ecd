"""Shards of the corpus: files of conversations with consecutive numbers, written by one process or several."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specviz.errors import SpecVizError
from specviz.training.conversation import Conversation
from specviz.training.corpus import Corpus
from specviz.training.prompts import KINDS
from specviz.training.synthesis import Counts, Synthesis
from specviz.worker import Job

PER_SHARD = 128
"""Conversations of a shard, dropped ones included"""


def write_shards(
    synthesis: Synthesis,
    folder: Path,
    answer_tokens: int,
    per_shard: int = PER_SHARD,
    share: tuple[int, int] = (0, 1),
    job: Job | None = None,
) -> int:
    """Write shards until the folder has this many answer tokens; returns how many it has.

    Shard s is the file s00012.npz with the kept conversations number s * per_shard to (s + 1) * per_shard - 1. Those
    that exist are not written again, and an unfinished one is begun again by the next call. share (i, n): only shards
    with s % n = i, so that n processes can work on one folder.
    """
    job = job or Job()
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, int] = {}
    if (total := _answer_tokens(folder, known)) >= answer_tokens:
        return total
    missing = (shard for shard in itertools.count(share[0], share[1]) if _name(shard) not in known)
    numbers = (n for shard in missing for n in range(shard * per_shard, (shard + 1) * per_shard))
    unfinished: dict[int, list[Conversation]] = {}
    for made in synthesis.run(numbers, job.stopping):
        shard = made.number // per_shard
        unfinished.setdefault(shard, []).append(made)
        if len(unfinished[shard]) < per_shard:
            continue
        corpus = _corpus(sorted(unfinished.pop(shard), key=lambda c: c.number), synthesis.dtype)
        if corpus is None:
            raise SpecVizError("No conversation of a whole shard could be used: is this target trained to chat?")
        corpus.save(folder / _name(shard))
        total = _answer_tokens(folder, known)
        job.report(_stage(total, synthesis.counts), total / answer_tokens)
        if total >= answer_tokens:
            break
    return total


def _stage(total: int, counts: Counts) -> str:
    return (
        f"{total} answer tokens; {counts.answer_tokens / counts.seconds:.0f} a second; of {counts.kept} conversations "
        f"{counts.looped} cut before a loop; dropped: {counts.short} too short, {counts.bad_turn} with a bad user turn"
    )


def _name(shard: int) -> str:
    return f"s{shard:05d}.npz"


def _answer_tokens(folder: Path, known: dict[str, int]) -> int:
    """Of all shards in a folder; those not yet in `known` are read and added to it."""
    for path in folder.glob("s[0-9]*.npz"):
        if path.name not in known:
            known[path.name] = Corpus.load(path).answer_tokens
    return sum(known.values())


def _corpus(conversations: Sequence[Conversation], dtype) -> Corpus | None:
    kept = [c for c in conversations if c.answers]
    if not kept:
        return None
    is_answer = []
    for made in kept:
        mask = np.zeros(len(made.tokens), bool)
        for start, end in made.answers:
            mask[start:end] = True
        is_answer.append(mask)
    names = list(KINDS)
    return Corpus(
        token_ids=np.concatenate([np.array(c.tokens, dtype) for c in kept]),
        length=np.array([len(c.tokens) for c in kept], np.uint16),
        answer_start=np.array([c.answers[0][0] for c in kept], np.uint16),
        temperature=np.array([c.plan.temperature for c in kept], np.float32),
        kind=np.array([names.index(c.plan.kind) for c in kept], np.int16),
        is_answer=np.concatenate(is_answer),
    )
