"""Indices of a block drafter's round over rows of different lengths: cache slots and positions of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Padding:
    """Fixed sizes that a round is padded to, and the cache slot that padding writes to."""

    rows: int
    context: int
    """New context tokens of each row."""
    slots: int
    """Block slots of each row."""
    unused_slot: int


class BlockIndices(NamedTuple):
    """A round's integers, row after row. Cache slots are those of a RaggedCache."""

    context_slots: list[int]
    """Cache slot of each new context token."""
    context_positions: list[int]
    slots: list[int]
    """Cache slot of each block slot."""
    positions: list[int]
    last_seen: list[int]
    """The last position that each block slot attends to: that of its row's last slot."""
    row_of: list[int]
    slot_of: list[int]
    """Number of each block slot within its row."""
    context_ends: list[int]
    """[rows] which new context token is the row's last; -1: it has none."""

    @classmethod
    def of(
        cls,
        cache_slots: Sequence[int],
        lengths: Sequence[int],
        fresh: Sequence[int],
        counts: Sequence[int],
        padding: Padding | None = None,
    ) -> BlockIndices:
        """Rows in these cache slots, with contexts of these lengths, that get fresh[i] new context tokens and counts[i]
        block slots. Padded tokens write to padding.unused_slot; padded block slots have their row's last position."""
        made = cls([], [], [], [], [], [], [], [])
        rows = [*zip(cache_slots, lengths, fresh, counts)]
        if padding is not None:
            rows += [(padding.unused_slot, 0, 0, 1)] * (padding.rows - len(rows))
        for number, row in enumerate(rows):
            made._add(number, *row)
            if padding is not None:
                made._pad(number, row[2], row[3], padding)
        return made

    def _add(self, row: int, cache_slot: int, length: int, fresh: int, count: int) -> None:
        start = length + fresh
        end = start + count
        self.context_slots.extend([cache_slot] * fresh)
        self.context_positions.extend(range(length, start))
        self.slots.extend([cache_slot] * count)
        self.positions.extend(range(start, end))
        self.last_seen.extend([end - 1] * count)
        self.row_of.extend([row] * count)
        self.slot_of.extend(range(count))
        self.context_ends.append(len(self.context_slots) - 1 if fresh else -1)

    def _pad(self, row: int, fresh: int, count: int, to: Padding) -> None:
        """Pad the row that was added last."""
        context, slots, last = to.context - fresh, to.slots - count, self.last_seen[-1]
        self.context_slots.extend([to.unused_slot] * context)
        self.context_positions.extend([0] * context)
        self.slots.extend([to.unused_slot] * slots)
        self.positions.extend([last] * slots)
        self.last_seen.extend([last] * slots)
        self.row_of.extend([row] * slots)
        self.slot_of.extend(range(count, to.slots))
