"""Keys and values of many rows of different lengths, in one preallocated store per layer.

Row r occupies columns 0..length(r) of its slot. New tokens are written at the end; a rollback only lowers
the length, and the stale tail is overwritten by the next write and never attended to. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from specviz.errors import MemoryBudgetError
from specviz.sampling.transfer import index_of, to_device

COLUMNS = 16
"""On a CPU columns are read in multiples of so many, masked where they hold nothing yet: attention then adds up in the
same order however many tokens a pass brings, and a verify pass computes the very numbers of single steps."""


@dataclass(frozen=True)
class Group:
    """Rows that bring the same number of new tokens to a pass: they attend together."""

    tokens: torch.Tensor
    """[G, n] indices into the packed pass."""
    slots: torch.Tensor | slice
    """The rows' slots in the store."""
    columns: int
    """What is read of the store: the longest row's length after the pass or somewhat more."""
    whole: bool
    """Each new token sees every column that is read."""
    last_seen: torch.Tensor
    """[G, n] of Pass.last_seen_of"""


@dataclass
class Pass:
    """One packed forward: where each of its N tokens is written, and who attends to what."""

    slot_of: torch.Tensor
    """[N]"""
    position_of: torch.Tensor
    """[N]"""
    last_seen_of: torch.Tensor
    """[N] the last position of its row that each token sees: its own or, in a block, that of the last token."""
    span: tuple[int, int, int] | None
    """Of a pass of one row: its slot and the columns from and to which it is written."""
    longest: int
    """No position exceeds it."""
    cache: RaggedCache
    causal: bool
    members: dict[int, list[tuple[int, int, int]]]
    """By how many tokens they bring: slot, first token and length before, of each row."""
    masks: dict[tuple[int, int | None, int], torch.Tensor | None] = field(default_factory=dict)
    """Made once per pass, by the arguments of RaggedCache.mask."""

    @cached_property
    def groups(self) -> list[Group]:
        """Rows that bring equally many tokens."""
        return [self._group(count, members) for count, members in self.members.items()]

    def _group(self, count: int, members: list[tuple[int, int, int]]) -> Group:
        device = self.cache.device
        first = to_device([start for _, start, _ in members], device)
        tokens = first[:, None] + torch.arange(count, device=device)
        longest = max(length for _, _, length in members) + count
        columns = self.cache.columns(longest)
        even = len({length for _, _, length in members}) == 1
        return Group(
            tokens,
            index_of([slot for slot, _, _ in members], device),
            columns,
            columns == longest and even and (count == 1 or not self.causal),
            self.last_seen_of[tokens],
        )


class RaggedCache:
    """K and V of one run. `add`, `truncate` and `drop` are O(1); storage grows when rows or capacity do, at a write."""

    def __init__(self, layers: int, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype = device, dtype
        self.keys: list[torch.Tensor | None] = [None] * layers
        """Per layer [slots, kv_heads, capacity, head_dim]; made at the layer's first write."""
        self.values: list[torch.Tensor | None] = [None] * layers
        self.native: tuple | None = None
        """The keys of layer 0, and what native_layers.py made of all stores: valid as long as those are these."""
        self.lengths: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._slot_count = 0
        self._capacity = 0

    def add(self, row: int, capacity: int) -> None:
        """Make room for a new row of at most `capacity` tokens."""
        if row in self._slots:
            raise ValueError(f"row {row} is already in the cache")
        self._capacity = max(self._capacity, capacity)
        if not self._free:
            self._free.append(self._slot_count)
            self._slot_count += 1
        self._slots[row] = self._free.pop(0)
        self.lengths[row] = 0

    @torch.inference_mode()
    def copy(self, source: int, row: int) -> None:
        """Give an empty row what another row holds, after a pass in which that one was written."""
        length = self.lengths[source]
        if self.lengths[row] or length > self._capacity:
            raise ValueError(f"row {row} is not empty, or has no room for {length} tokens")
        for store in (*self.keys, *self.values):
            store[self._slots[row], :, :length] = store[self._slots[source], :, :length]
        self.lengths[row] = length

    def slot(self, row: int) -> int:
        """Where a row's keys and values stand in the store."""
        return self._slots[row]

    def check(self, lengths: Sequence[int], counts: Sequence[int]) -> None:
        """Raises ValueError if rows of these lengths have no room for so many more tokens."""
        if any(length + count > self._capacity for length, count in zip(lengths, counts)):
            raise ValueError(f"a row would outgrow its capacity of {self._capacity} tokens")

    def truncate(self, row: int, length: int) -> None:
        """Forget everything of the row from `length` on."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(f"row {row} holds {self.lengths[row]} tokens, it cannot be cut to {length}")
        self.lengths[row] = length

    def drop(self, row: int) -> None:
        """Free the row's slot for another."""
        self._free.append(self._slots.pop(row))
        self._free.sort()
        del self.lengths[row]

    def plan(self, rows: list[int], counts: list[int], causal: bool = True) -> Pass:
        """The pass that brings counts[i] new tokens to rows[i], packed in this order. Lengths are raised
        at once: the pass must then be run. causal False: the new tokens of a row all see each other."""
        slot_of, position_of, last_seen_of, members = [], [], [], {}
        for row, count in zip(rows, counts):
            length, slot = self.lengths[row], self._slots[row]
            if length + count > self._capacity:
                raise ValueError(f"row {row} would outgrow its capacity of {self._capacity} tokens")
            members.setdefault(count, []).append((slot, len(slot_of), length))
            slot_of += [slot] * count
            position_of += range(length, length + count)
            last_seen_of += range(length, length + count) if causal else [length + count - 1] * count
            self.lengths[row] = length + count
        span = (slot_of[0], position_of[0], position_of[-1] + 1) if len(rows) == 1 else None
        return Pass(
            to_device(slot_of, self.device),
            to_device(position_of, self.device),
            to_device(last_seen_of, self.device),
            span,
            max(position_of) + 1,
            self,
            causal,
            members,
        )

    def columns(self, length: int) -> int:
        """How many are read for so many tokens."""
        return -(-length // COLUMNS) * COLUMNS if self.device.type == "cpu" else length

    def write(self, plan: Pass, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key and value [N, kv_heads, head_dim] of the pass's tokens."""
        for old, new in zip(self.stores(layer, *key.shape[1:]), (key, value)):
            if plan.span is None:
                old[plan.slot_of, :, plan.position_of] = new
            else:  # the same by a plain copy: a third of the time
                slot, start, end = plan.span
                old[slot, :, start:end] = new.transpose(0, 1)

    def stores(self, layer: int, kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer [slots, kv_heads, capacity, head_dim], with room for all rows."""
        for store in (self.keys, self.values):
            old = store[layer]
            if old is None or old.shape[0] < self._slot_count or old.shape[2] < self.columns(self._capacity):
                store[layer] = self._grown(old, kv_heads, head_dim)
        return self.keys[layer], self.values[layer]

    def _grown(self, old: torch.Tensor | None, kv_heads: int, head_dim: int) -> torch.Tensor:
        shape = (self._slot_count, kv_heads, self.columns(self._capacity), head_dim)
        try:
            # zeros: an unwritten column is masked, but a NaN there would survive the mask's multiplication
            grown = torch.zeros(shape, dtype=self.dtype, device=self.device)
        except RuntimeError as error:
            size = shape[0] * shape[1] * shape[2] * shape[3] * self.dtype.itemsize * 2 * len(self.keys)
            raise MemoryBudgetError(
                f"A cache of {size / 2**20:.0f} MiB for {shape[0]} rows of {shape[2]} tokens does not fit the memory "
                f"of {self.device}: lower the batch, the prompt or the length."
            ) from error
        if old is not None:
            grown[: old.shape[0], :, : old.shape[2]] = old
        return grown

    def mask(self, plan: Pass, index: int, window: int | None, repeats: int) -> torch.Tensor | None:
        """Which stored columns each new token of a group sees: [G, 1, repeats * n, columns] of 0 or -inf; None: all.
        Column j is seen by the token whose last seen position is i if j <= i, and i - j < window where there is one."""
        if window is None and plan.groups[index].whole:
            return None
        key = (index, window, repeats)
        if key not in plan.masks:
            group = plan.groups[index]
            column = torch.arange(group.columns, device=self.device)
            last = group.last_seen[..., None]
            seen = column <= last
            if window is not None:
                seen &= last - column < window
            # on a GPU to look would mean to wait for it
            if self.device.type != "cpu" or not bool(seen.all()):
                hidden = torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(~seen, -torch.inf)
                plan.masks[key] = hidden[:, None].repeat(1, 1, repeats, 1)
            else:
                plan.masks[key] = None
        return plan.masks[key]

    def bytes(self) -> int:
        """Memory held now."""
        return sum(t.nbytes for t in (*self.keys, *self.values) if t is not None)
