"""The state of one sequence during decoding: prompt, emitted tokens, seed and round count."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """One sequence. Its KV cache has the prompt and the emitted tokens, without the last one (the anchor)."""

    id: int
    seed: int
    prompt: tuple[int, ...]
    limit: int
    """The most tokens to emit."""
    emitted: list[int] = field(default_factory=list)
    rounds: int = 0

    @property
    def anchor(self) -> int:
        """The last token, with which the next verify pass begins."""
        return self.emitted[-1] if self.emitted else self.prompt[-1]

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - len(self.emitted)
