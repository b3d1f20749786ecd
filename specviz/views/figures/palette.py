"""The colours of the app by role, the same in tokens, bars, charts and text (Okabe-Ito).

Amber and sky are pale on white: give such fills an outline in ink, and put only ink text on fills.
"""

DRAFT = "#E69F00"
TARGET = "#0072B2"
ACCEPTED = "#009E73"
REJECTED = "#D55E00"
BONUS = "#CC79A7"
DROPPED = "#7F7F7F"
PLAIN = "#56B4E9"
"""Plain decoding, wherever it stands beside speculative decoding."""
PREFILL = "#8C6BB1"
IDLE = "#B8B8B8"
"""Time in which the arithmetic units wait."""

ROLES = {
    "draft": DRAFT,
    "target": TARGET,
    "verify": TARGET,
    "accepted": ACCEPTED,
    "rejected": REJECTED,
    "bonus": BONUS,
    "dropped": DROPPED,
    "plain": PLAIN,
    "prefill": PREFILL,
}

LINE = "#7F858C"
"""Roofs, outlines and guides: legible on light and on dark paper."""
INK_ON_LIGHT = "#1F2328"
INK_ON_DARK = "#E8E6E3"
MUTED_ON_LIGHT = "#57606A"
MUTED_ON_DARK = "#A8A39D"
GRID_ON_LIGHT = "#D8DEE4"
GRID_ON_DARK = "#45423E"
PAPER_LIGHT = "#FFFFFF"
PAPER_DARK = "#171614"

DRAFTERS = {
    "ngram": "#6F7C8B",
    "autoregressive": "#6A6AE0",
    "parallel": "#8A8A12",
    "hybrid": "#B0578D",
    "lookup+parallel": "#2E8B7A",
}
"""Drafters beside each other, where colour cannot go by role; always with a symbol and a dash of their own too."""
OTHER_DRAFTER = "#A0662F"
