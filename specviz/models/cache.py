"""KV cache for many rows of different lengths, in one preallocated tensor per layer.

Row r occupies columns 0..length(r) of its slot. New tokens are written at the end; a rollback only lowers
the length: the stale tail is masked, and overwritten by the next write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from specviz.errors import MemoryBudgetError
from specviz.sampling.transfer import index_of, to_device

COLUMNS = 16
"""On a CPU columns are read in multiples of 16, and unwritten ones are masked: attention then sums in the same order
whatever the number of tokens in a pass, so a verify pass gives bit for bit the results of single steps."""


@dataclass(frozen=True)
class Group:
    """Rows with the same number of new tokens in a pass; one attention call serves them."""

    tokens: torch.Tensor
    """[G, n] indices into the packed pass."""
    slots: torch.Tensor | slice
    """The rows' slots in the store."""
    columns: int
    """Columns of the store that are read: the longest row's length after the pass, rounded up."""
    whole: bool
    """Whether each new token attends to every column that is read, so that no mask is needed."""
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
    """[N] the last position of its row that each token attends to: its own or, in a block, the last token's."""
    span: tuple[int, int, int] | None
    """Of a pass of one row: its slot, and the first and the end column that are written."""
    longest: int
    """An upper bound of the positions plus one."""
    cache: RaggedCache
    causal: bool
    members: dict[int, list[tuple[int, int, int]]]
    """Number of new tokens -> slot, first token and previous length of each row with that many."""
    masks: dict[tuple[int, int | None, int], torch.Tensor | None] = field(default_factory=dict)
    """Cached results of RaggedCache.mask, by its arguments."""

    @cached_property
    def groups(self) -> list[Group]:
        """The rows, grouped by their number of new tokens."""
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
        """Per layer [slots, kv_heads, capacity, head_dim]; allocated at the layer's first write."""
        self.values: list[torch.Tensor | None] = [None] * layers
        self.native: tuple | None = None
        """Layer 0's keys, and native_layers.py's structures with all stores' addresses; valid while those keys are the
        same tensor."""
        self.lengths: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._slot_count = 0
        self._capacity = 0

    def add(self, row: int, capacity: int) -> None:
        """Add a row of at most `capacity` tokens."""
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
        """Copy a row's keys and values into an empty row. The source must have been written in a pass before."""
        length = self.lengths[source]
        if self.lengths[row] or length > self._capacity:
            raise ValueError(f"row {row} is not empty, or its capacity is less than {length} tokens")
        for layer in range(len(self.keys)):
            for store in self.stored(layer):
                store[self._slots[row], :, :length] = store[self._slots[source], :, :length]
        self.lengths[row] = length

    def slot(self, row: int) -> int:
        """A row's index in the stores' first dimension."""
        return self._slots[row]

    def check(self, lengths: Sequence[int], counts: Sequence[int]) -> None:
        """Raises ValueError if rows of these lengths cannot grow by counts[i] tokens."""
        if any(length + count > self._capacity for length, count in zip(lengths, counts)):
            raise ValueError(f"a row would outgrow its capacity of {self._capacity} tokens")

    def truncate(self, row: int, length: int) -> None:
        """Roll a row back to its first `length` tokens."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(f"row {row} has {self.lengths[row]} tokens, it cannot be cut to {length}")
        self.lengths[row] = length

    def drop(self, row: int) -> None:
        """Free the row's slot for another."""
        self._free.append(self._slots.pop(row))
        self._free.sort()
        del self.lengths[row]

    def plan(self, rows: list[int], counts: list[int], causal: bool = True) -> Pass:
        """The pass over counts[i] new tokens of each rows[i], packed in this order. Lengths are raised at once, so it
        must then be run. causal False: all new tokens of a row attend to each other."""
        slot_of: list[int] = []
        position_of: list[int] = []
        last_seen_of: list[int] = []
        members: dict[int, list[tuple[int, int, int]]] = {}
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
        """Columns to read for a row of `length` tokens."""
        return -(-length // COLUMNS) * COLUMNS if self.device.type == "cpu" else length

    def write(self, plan: Pass, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key and value [N, kv_heads, head_dim] of the pass's tokens."""
        for old, new in zip(self.stores(layer, *key.shape[1:]), (key, value)):
            if plan.span is None:
                old[plan.slot_of, :, plan.position_of] = new
            else:  # the same as a slice assignment: a third of the time
                slot, start, end = plan.span
                old[slot, :, start:end] = new.transpose(0, 1)

    @property
    def capacity(self) -> int:
        """Tokens of a slot, as allocated for layer 0."""
        return self.stored(0)[0].shape[2]

    def stored(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [slots, kv_heads, capacity, head_dim] of a layer. Raises ValueError if it is unwritten."""
        keys, values = self.keys[layer], self.values[layer]
        if keys is None or values is None:
            raise ValueError(f"layer {layer} of the cache has not been written yet")
        return keys, values

    def stores(self, layer: int, kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `stored`, allocated or grown first if it is too small for all rows."""
        for store in (self.keys, self.values):
            old = store[layer]
            if old is None or old.shape[0] < self._slot_count or old.shape[2] < self.columns(self._capacity):
                store[layer] = self._grown(old, kv_heads, head_dim)
        return self.stored(layer)

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
        """Attention mask of a group: [G, 1, repeats * n, columns] of 0 or -inf; None: nothing is masked. A token whose
        last attended position is i attends to column j if j <= i, and i - j < window if there is a window."""
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
            # on a GPU reading the result would synchronize
            if self.device.type != "cpu" or not bool(seen.all()):
                hidden = torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(~seen, -torch.inf)
                plan.masks[key] = hidden[:, None].repeat(1, 1, repeats, 1)
            else:
                plan.masks[key] = None
        return plan.masks[key]

    def bytes(self) -> int:
        """Allocated memory."""
        return sum(t.nbytes for t in (*self.keys, *self.values) if t is not None)
