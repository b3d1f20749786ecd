"""CUDA graphs of a Llama's forward passes: captured once per shape, then replayed.

A step of a small model on a GPU is hundreds of kernels of a few microseconds each, and launching them one by one from
Python takes longer than running them. A graph launches them all at once, but knows only fixed shapes and fixed
addresses. So the rows, the tokens of a row and the columns of the cache that are read are rounded up to a few sizes;
padding writes to a slot of the store that belongs to no row, and its results are not read. Plain steps, verify passes
and the passes of drafters are replayed (those of block drafters: drafters/block_graphs.py); prefill is not. What cannot
be replayed runs eagerly, and `note` says why.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from specviz.errors import MemoryBudgetError
from specviz.hardware.memory import free_memory_bytes
from specviz.models.attention import Attend, query_key_value
from specviz.models.cache import Pass, RaggedCache
from specviz.models.recorder import CudaRecorder, Recorder
from specviz.sampling.transfer import to_device

ROWS = (1, 2, 4, 8, 16, 32, 64)
TOKENS = (1, 2, 4, 6, 9, 12, 17)
"""Tokens of each row; 17 is K = 16 and the anchor. Anything longer is a prompt and runs eagerly."""
LEAST_COLUMNS = 256
"""Columns of the cache that are read, and a store's capacity: this, or a doubling of it."""
_MOST_GRAPHS = 64
"""Per store; the least recently used one goes."""
_MOST_FREE_STORES = 2


def bucket(n: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the rising sizes that holds n; None if none does."""
    return next((size for size in sizes if n <= size), None)


def columns_bucket(n: int, most: int) -> int:
    """LEAST_COLUMNS doubled until it holds n, but no more than `most`."""
    size = LEAST_COLUMNS
    while size < n:
        size *= 2
    return min(size, most)


# ------------------------------------------------------------------------------------------- recording


# ----------------------------------------------------------------------------------------------- stores


@dataclass
class Store:
    """Keys and values of a run at fixed addresses, and the graphs that were recorded on them."""

    keys: list[torch.Tensor]
    """Per layer [slots + 1, kv_heads, capacity, head_dim]; padding writes to the last slot."""
    values: list[torch.Tensor]
    graphs: OrderedDict[tuple, Recorded] = field(default_factory=OrderedDict)

    @property
    def slots(self) -> int:
        """Slots that rows can have."""
        return self.keys[0].shape[0] - 1

    @property
    def capacity(self) -> int:
        """Tokens of a slot."""
        return self.keys[0].shape[2]


class GraphCache(RaggedCache):
    """A RaggedCache on a Store. When the cache is freed, its store is kept for reuse, with its graphs."""

    def __init__(self, graphs: Recordings):
        super().__init__(graphs.layers, graphs.device, graphs.dtype)
        self._graphs = graphs
        self._stores_used: list[Store] = []
        weakref.finalize(self, graphs.take_back, self._stores_used).atexit = False

    @property
    def store(self) -> Store:
        """The store, grown to every row that was added."""
        used = self._stores_used[0] if self._stores_used else None
        if used is None or used.slots < self._slot_count or used.capacity < self._capacity:
            larger = self._graphs.store(self._slot_count, self._capacity)
            if used is not None:
                for old, new in zip((*used.keys, *used.values), (*larger.keys, *larger.values)):
                    new[: used.slots, :, : used.capacity] = old[: used.slots]
                self._graphs.take_back(self._stores_used)
            self._stores_used[:] = [larger]
            self.keys, self.values = list(larger.keys), list(larger.values)
        return self._stores_used[0]

    def plan(self, rows: list[int], counts: list[int], causal: bool = True) -> Pass:
        _ = self.store  # grown before anything is written, since growing moves it
        return super().plan(rows, counts, causal)


# ----------------------------------------------------------------------------------------------- graphs


@dataclass(frozen=True)
class Recorded:
    """One graph with its inputs and results."""

    inputs: tuple[torch.Tensor, ...]
    replay: Callable[[], None]
    results: dict[str, torch.Tensor]


class Recordings:
    """The graphs of one network. Once `reason` is set they are not used any more, and passes run eagerly."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        dim: int,
        device: torch.device,
        dtype: torch.dtype,
        longest: int,
        recorder: Recorder | None = None,
        reason: str = "",
    ):
        """dim: of a head; dtype: of keys and values. longest: the last position."""
        self.layers, self.kv_heads, self.dim, self.device, self.dtype = layers, kv_heads, dim, device, dtype
        self.longest, self.reason = longest, reason
        self._recorder = recorder or (None if reason else CudaRecorder(device))
        self._free: list[Store] = []
        self.recorded = self.replayed = self.eager = 0

    @property
    def note(self) -> str:
        """How many passes were replayed, or why none, in a sentence for the screen."""
        if self.reason:
            return f"CUDA graphs are not used, passes run eagerly: {self.reason}."
        return (
            f"CUDA graphs: {self.recorded} recorded, {self.replayed} passes launched from them, {self.eager} run "
            "eagerly (prompts, and shapes beyond the sizes)."
        )

    # ---- stores

    def new_cache(self) -> RaggedCache:
        """An empty cache for one run."""
        return RaggedCache(self.layers, self.device, self.dtype) if self.reason else GraphCache(self)

    def store(self, slots: int, capacity: int) -> Store:
        """A store of at least that size, reused if there is one. Raises MemoryBudgetError."""
        slots, capacity = bucket(slots, ROWS) or slots, columns_bucket(capacity, 1 << 62)
        for i, free in enumerate(self._free):
            if (free.slots, free.capacity) == (slots, capacity):
                return self._free.pop(i)
        shape = (slots + 1, self.kv_heads, capacity, self.dim)
        size = shape[0] * shape[1] * shape[2] * shape[3] * self.dtype.itemsize * 2 * self.layers
        if size > free_memory_bytes(str(self.device)):
            self._free.clear()  # with their graphs
            if size > free_memory_bytes(str(self.device)):
                raise MemoryBudgetError(
                    f"A cache of {size / 2**20:.0f} MiB for {slots} rows of {capacity} tokens does not fit the memory "
                    f"of {self.device}: lower the batch, the prompt or the length."
                )
        made = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2 * self.layers)]
        return Store(made[: self.layers], made[self.layers :])

    def take_back(self, stores: list[Store]) -> None:
        """Keep a freed cache's stores for the next run of that size."""
        self._free += stores
        stores.clear()
        del self._free[:-_MOST_FREE_STORES]

    # ---- launches

    def launch(
        self,
        store: Store,
        key: tuple,
        inputs: Sequence[torch.Tensor],
        work: Callable[..., dict[str, torch.Tensor]],
        size: int,
    ) -> dict[str, torch.Tensor] | None:
        """The results of work(*inputs), from the graph of that key, which is recorded if there is none. size: bytes of
        the large results. The next launch overwrites the results. None if recording fails (`reason` is then set) or
        there is too little memory."""
        recorded = store.graphs.get(key)
        if recorded is None:
            recorded = self._record(store, key, inputs, work, size)
            if recorded is None:
                self.eager += 1
                return None
        else:
            store.graphs.move_to_end(key)
            for static, given in zip(recorded.inputs, inputs):
                static.copy_(given)
        recorded.replay()
        self.replayed += 1
        return recorded.results

    def _record(
        self,
        store: Store,
        key: tuple,
        inputs: Sequence[torch.Tensor],
        work: Callable[..., dict[str, torch.Tensor]],
        size: int,
    ) -> Recorded | None:
        if self._recorder is None or 4 * size > free_memory_bytes(str(self.device)):
            return None
        static, recorder = tuple(given.clone() for given in inputs), self._recorder
        try:
            replay, results = recorder.record(lambda: work(*static))
        except (RuntimeError, TypeError, ValueError) as error:
            self.reason = f"recording failed ({' '.join(str(error).split())[:160]})"
            return None
        recorded = store.graphs[key] = Recorded(static, replay, results)
        while len(store.graphs) > _MOST_GRAPHS:
            store.graphs.popitem(last=False)
        self.recorded += 1
        return recorded


def gathered(slots: Sequence[int], rows: int, store: Store) -> bool:
    """Whether `rows` rows, the first of them in these slots, must be gathered from the store. If not, they are its
    first slots and are read in place."""
    return list(slots) != list(range(len(slots))) or rows > store.slots


def store_attention(
    store: Store,
    columns: int,
    positions: torch.Tensor,
    written: torch.Tensor,
    last_seen: torch.Tensor,
    read: torch.Tensor,
    gather: bool,
    shared: int,
) -> Attend:
    """Attention of R rows with n tokens each over the first `columns` columns of their slots in a store.

    positions, written (slots) and last_seen (positions) [R * n] of the tokens; read [R] the rows' slots. shared: heads
    that share a KV head; they become further queries of it.
    """
    rows, dtype = len(read), store.keys[0].dtype
    count = len(positions) // rows
    seen = torch.arange(columns, device=positions.device) <= last_seen.view(rows, 1, count, 1)
    # an additive mask: the attention kernel would convert a boolean one in every layer
    mask = torch.zeros(seen.shape, dtype=dtype, device=positions.device).masked_fill_(~seen, -torch.inf)
    mask = mask.repeat(1, 1, shared, 1)

    def attend(layer: int, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kv_heads: int) -> torch.Tensor:
        query, key, value = query_key_value(heads, kv_heads, cos, sin)
        past: list[torch.Tensor] = []
        for kept, new in ((store.keys[layer], key), (store.values[layer], value)):
            kept[written, :, positions] = new
            past.append((kept.index_select(0, read) if gather else kept[:rows])[:, :, :columns])
        q = query.view(rows, count, kv_heads, shared, -1).permute(0, 2, 3, 1, 4)
        q = q.reshape(rows, kv_heads, shared * count, -1)
        mixed = functional.scaled_dot_product_attention(q, past[0], past[1], attn_mask=mask)
        mixed = mixed.view(rows, kv_heads, shared, count, -1).permute(0, 3, 1, 2, 4)
        return mixed.reshape(len(query), -1)

    return attend


class Graphs(Recordings):
    """The graphs of a CausalModel."""

    def __init__(
        self,
        fused,
        layers: int,
        device: torch.device,
        dtype: torch.dtype,
        vocab_size: int,
        longest: int,
        recorder: Recorder | None = None,
        reason: str = "",
    ):
        """fused: the FusedLlama, or None with a reason. longest: the last position that the model has."""
        super().__init__(
            layers, fused.kv_heads if fused else 0, fused.dim if fused else 0, device, dtype, longest, recorder, reason
        )
        self.fused, self.vocab_size = fused, vocab_size

    def forward(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int] | torch.Tensor],
        taps: Sequence[int],
        logits: bool | Sequence[int],
    ) -> tuple[torch.Tensor, list[int], list[int], list[torch.Tensor] | None] | None:
        """The fields of CausalModel.forward's Output for these arguments; None if the pass must run eagerly."""
        counts = [len(t) for t in tokens]
        most_rows, most_tokens = bucket(len(rows), ROWS), bucket(max(counts), TOKENS)
        if self.reason or logits is False or not isinstance(cache, GraphCache) or not (most_rows and most_tokens):
            self.eager += 1
            return None
        lengths = [cache.lengths[row] for row in rows]
        store = cache.store
        cache.check(lengths, counts)
        columns = columns_bucket(max(length + count for length, count in zip(lengths, counts)), store.capacity)
        slots = [cache.slot(row) for row in rows]
        key = (most_rows, most_tokens, columns, gathered(slots, most_rows, store), tuple(taps))
        inputs = self._inputs(tokens, lengths, slots, most_rows, most_tokens, store.slots)
        results = self.launch(
            store,
            key,
            [inputs],
            lambda given: self._pass(store, key, given),
            4 * most_rows * most_tokens * self.vocab_size,
        )
        if results is None:
            return None
        for row, count in zip(rows, counts):
            cache.lengths[row] += count
        # copies: the next launch overwrites the results
        found = results["logits"][: len(rows) * most_tokens].clone()
        wanted = counts if logits is True else [min(n, w) for n, w in zip(counts, logits)]
        ends = [i * most_tokens + count for i, count in enumerate(counts)]
        starts, tapped = [end - n for end, n in zip(ends, wanted)], None
        if taps:
            every = results["taps"][: len(rows) * most_tokens].clone()
            tapped = [every[end - n : end] for end, n in zip(ends, counts)]
        return found, starts, wanted, tapped

    def _inputs(
        self,
        tokens: Sequence[Sequence[int] | torch.Tensor],
        lengths: Sequence[int],
        slots: Sequence[int],
        most_rows: int,
        most_tokens: int,
        unused_slot: int,
    ) -> torch.Tensor:
        """All inputs of a pass as one int64 tensor, so that one copy transfers them: tokens [R * n], positions
        [R * n], slots that are written [R * n], slots that are read [R].

        A padded token has the last position of its row, and writes to the slot that is no row's.
        """
        ids: list[int] = []
        positions: list[int] = []
        written: list[int] = []
        for row, length, slot in zip(tokens, lengths, slots):
            spare = most_tokens - len(row)
            ids += [*([0] * len(row) if isinstance(row, torch.Tensor) else row), *[0] * spare]
            positions += [*range(length, length + len(row)), *[length + len(row) - 1] * spare]
            written += [slot] * len(row) + [unused_slot] * spare
        spare = (most_rows - len(slots)) * most_tokens
        packed = to_device(
            [
                *ids,
                *[0] * spare,
                *positions,
                *[0] * spare,
                *written,
                *[unused_slot] * spare,
                *slots,
                *[unused_slot] * (most_rows - len(slots)),
            ],
            self.device,
        )
        for i, row in enumerate(tokens):
            if isinstance(row, torch.Tensor):  # values that are on the device only
                packed[i * most_tokens : i * most_tokens + len(row)] = row
        return packed

    def _pass(self, store: Store, key: tuple, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """One pass that reads its inputs from `inputs` alone: logits [R * n, V], and taps [R * n, taps * D] if any."""
        rows, count, columns, gather, taps = key
        width = rows * count
        ids, positions, written, read = inputs.split((width, width, width, rows))
        attend = store_attention(
            store, columns, positions, written, positions, read, gather, self.fused.heads // self.kv_heads
        )
        logits, by_layer = self.fused(ids, positions, attend, taps, None, longest=self.longest)
        tapped = {"taps": torch.cat([by_layer[i] for i in taps], dim=-1)} if taps else {}
        return {"logits": logits.float(), **tapped}


def graphs_of(model, fused) -> Graphs | None:
    """The graphs of a CausalModel whose fused forward is `fused` (or None): None on anything but a CUDA GPU."""
    if model.device.type != "cuda":
        return None
    reason = "" if fused is not None else f"{type(model.module).__name__} runs its own modules, which are not recorded"
    return Graphs(fused, model.layers, model.device, model.dtype, model.vocab_size, last_position(model), reason=reason)


def last_position(model) -> int:
    """The last position that a CausalModel has, or 8191 if its limit is not known."""
    return (model.max_positions or 8192) - 1
