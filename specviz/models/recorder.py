"""Records work on a GPU as a CUDA graph that can be launched again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

_WARM_UPS = 2


class Recorder(Protocol):
    """Captures work so that it can be launched again."""

    def record(self, work: Callable[[], dict[str, torch.Tensor]]) -> tuple[Callable[[], None], dict[str, torch.Tensor]]:
        """Returns a function that repeats the work, and the tensors that its results are written to."""
        ...


class CudaRecorder:
    """CUDA graphs. Those of one recorder share one memory pool: copy results before the next launch."""

    def __init__(self, device: torch.device):
        self.device = device
        self._pool: Any = None

    def record(self, work: Callable[[], dict[str, torch.Tensor]]) -> tuple[Callable[[], None], dict[str, torch.Tensor]]:
        with torch.cuda.device(self.device):
            # libraries set themselves up at their first calls, which must not be part of the graph
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # thread_local: other sessions may use the GPU while this one records
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = work()
        return graph.replay, results
