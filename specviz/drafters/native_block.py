"""A whole round of a block drafter in one call of kernels.c: new context, block pass and head; and one slot of a serial
head in another.

The same as LeanBlock's steps with its weights of 4 bits and its head of 8; between them Python and torch's operators
would take longer than the products do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specviz.kernels import build
from specviz.kernels.packed import room_for
from specviz.models.cache import RaggedCache

if TYPE_CHECKING:
    from specviz.drafters.fused_block import LeanBlock


def _embedding(lean: LeanBlock) -> torch.Tensor:
    """The target's, in a type that kernels.c reads."""
    return lean.embedding.float() if lean.embedding.dtype == torch.float16 else lean.embedding


class NativeBlock:
    """Over the weights of a LeanBlock that are packed for kernels.c."""

    def __init__(self, lean: LeanBlock):
        c = self._config = lean.config
        self._lean, self._inner = lean, lean.layers.products[3].shape[1]
        self._kept = [
            embedding := _embedding(lean),
            *(
                t.detach().float().contiguous()
                for t in (lean.fuse_gain, lean.gain, torch.ones(c.hidden_size), lean.masks)
            ),
            *(product.packed for product in (lean.fuse, lean.context, lean.inputs, lean.head)),
        ]
        self._block = build.Block(
            c.hidden_size,
            self._inner,
            len(c.taps),
            c.layers,
            lean.head.shape[0],
            c.rms_eps,
            8 * embedding.element_size(),
            *(t.data_ptr() for t in self._kept),
        )

    def draft(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        taps: Sequence[torch.Tensor | None],
        last_states: Sequence[torch.Tensor],
        anchors: Sequence[int],
        counts: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """As LeanBlock.draft."""
        c, lean = self._config, self._lean
        fresh = [0 if t is None else len(t) for t in taps]
        old = [cache.lengths[row] for row in rows]
        now = [length + n for length, n in zip(old, fresh)]
        slots = [cache.slot(row) for row in rows]
        cache.check(now, counts)
        n, tokens, most = sum(fresh), sum(counts), max(map(sum, zip(now, counts)))
        # all whole numbers in one tensor: of each token, new ones first, then the block's slots
        ends, at = [], 0
        for of_row in fresh:
            at += of_row
            ends.append(at - 1 if of_row else -1)
        numbers = torch.tensor(
            [
                *(slot for slot, k in zip(slots, fresh) for _ in range(k)),
                *(slot for slot, k in zip(slots, counts) for _ in range(k)),
                *(p for length, k in zip(old, fresh) for p in range(length, length + k)),
                *(p for length, k in zip(now, counts) for p in range(length, length + k)),
                *(length + k - 1 for length, k in zip(now, counts) for _ in range(k)),
                *(i for i, k in enumerate(counts) for _ in range(k)),
                *(slot for k in counts for slot in range(k)),
                *ends,
                *anchors,
            ]
        )
        slot_of, position_of, last_seen, row_of, number_of, ends_of, anchor_of = numbers.split(
            [n + tokens, n + tokens, tokens, tokens, tokens, len(rows), len(rows)]
        )
        cos, sin = lean.turns.rows(position_of, most)
        layers = lean.layers.on(cache)
        capacity = cache.keys[0].shape[2]
        queries = torch.empty(tokens * c.heads * c.head_dim)
        scores = torch.empty(torch.get_num_threads() * build.QUERIES * capacity)

        def pass_of(first: int, count: int) -> build.Pass:
            """Of so many tokens from `first` on."""
            return build.Pass(
                count,
                c.heads,
                c.kv_heads,
                c.head_dim,
                cos[first:].data_ptr(),
                sin[first:].data_ptr(),
                slot_of[first:].data_ptr(),
                position_of[first:].data_ptr(),
                last_seen.data_ptr(),
                capacity,
                queries.data_ptr(),
                scores.data_ptr(),
            )

        given = [t for t in taps if t is not None]
        given = torch.cat(given).float().contiguous() if given else None
        last = torch.stack(list(last_states))
        states = torch.empty(tokens, c.hidden_size)
        logits = torch.empty(tokens, lean.head.shape[0])
        width, both = len(c.taps) * c.hidden_size, 2 * c.kv_heads * c.head_dim
        packed = c.heads * c.head_dim + both
        own = n * (width + c.hidden_size + c.layers * both)
        passed = tokens * (packed + c.heads * c.head_dim + 2 * self._inner)
        scratch = torch.empty(n * c.hidden_size + 4 * len(rows) * c.hidden_size + max(own, passed))
        room = room_for(max(n, tokens, len(rows)), max(width, 2 * c.hidden_size, self._inner))
        build.kernels(4).draft_block(
            ctypes.byref(self._block),
            layers,
            ctypes.byref(pass_of(0, n)),
            None if given is None else given.data_ptr(),
            ends_of.data_ptr(),
            len(rows),
            last.data_ptr(),
            anchor_of.data_ptr(),
            ctypes.byref(pass_of(n, tokens)),
            row_of.data_ptr(),
            number_of.data_ptr(),
            states.data_ptr(),
            logits.data_ptr(),
            scratch.data_ptr(),
            room.data_ptr(),
            torch.get_num_threads(),
        )
        cache.lengths.update(zip(rows, now))
        return states, logits, list(last)


class NativeSerial:
    """Over the weights of a LeanBlock's serial head."""

    def __init__(self, lean: LeanBlock):
        serial, size = lean.serial, lean.config.hidden_size
        self._size, self._inner, self._outputs = size, serial.outer.shape[1], lean.head.shape[0]
        self._kept = [
            embedding := _embedding(lean),
            serial.gain.detach().float().contiguous(),
            serial.of_tokens.packed,
            serial.outer.packed,
            lean.head.packed,
        ]
        self._serial = build.Serial(
            size,
            self._inner,
            self._outputs,
            serial.eps,
            8 * embedding.element_size(),
            *(t.data_ptr() for t in self._kept),
        )

    def mend(
        self, prepared: torch.Tensor, previous: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As LeanBlock.mend."""
        rows, size = len(previous), self._size
        states, logits = torch.empty(rows, size), torch.empty(rows, self._outputs)
        scratch = torch.empty(rows * (3 * size + 2 * self._inner))
        room = room_for(rows, max(2 * size, self._inner))
        prepared, previous, before = prepared.contiguous(), previous.contiguous(), before.contiguous()
        build.kernels(4).mend(
            ctypes.byref(self._serial),
            rows,
            prepared.data_ptr(),
            previous.data_ptr(),
            before.data_ptr(),
            states.data_ptr(),
            logits.data_ptr(),
            scratch.data_ptr(),
            room.data_ptr(),
            torch.get_num_threads(),
        )
        return states, logits
