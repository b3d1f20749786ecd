"""One text being decoded, as the decoding loop and the server keep it. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """One text being decoded. cached = prompt + emitted tokens without the last one, the anchor."""

    id: int
    seed: int
    prompt: tuple[int, ...]
    limit: int
    """How many tokens it may emit."""
    emitted: list[int] = field(default_factory=list)
    rounds: int = 0

    @property
    def anchor(self) -> int:
        return self.emitted[-1] if self.emitted else self.prompt[-1]

    @property
    def remaining(self) -> int:
        return self.limit - len(self.emitted)
