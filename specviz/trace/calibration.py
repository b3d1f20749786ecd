"""Calibration of confidences: reliability bins, expected calibration error (ECE), AUC, and Wilson intervals.

Functions of plain arrays, without torch; pages and training use the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from specviz.trace.records import Trace

BINS = 10


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a proportion (z = 1.96: 95 %), which is valid for few trials too. (0, 1) without
    trials."""
    if trials == 0:
        return 0.0, 1.0
    share, spread = hits / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def reliability(confidence: Sequence[float], happened: Sequence[float], bins: int = BINS) -> pd.DataFrame:
    """The reliability diagram: per non-empty bin of equal width low, high, count, mean confidence, hits, share of hits
    and its Wilson interval. confidence [N] in 0..1, happened [N] of 0 and 1."""
    c, h = np.asarray(confidence, float), np.asarray(happened, float)
    at = _bin(c, bins)
    rows = []
    for b in range(bins):
        chosen = at == b
        if n := int(chosen.sum()):
            hits = int(h[chosen].sum())
            rows.append((b / bins, (b + 1) / bins, n, float(c[chosen].mean()), hits, hits / n, *wilson(hits, n)))
    return pd.DataFrame(
        rows, columns=["low", "high", "count", "mean_confidence", "happened", "share", "share_low", "share_high"]
    )


def expected_error(confidence: Sequence[float], happened: Sequence[float], bins: int = BINS) -> float | None:
    """Expected calibration error (ECE): the mean of |mean confidence - share of hits| over bins, weighted by count.
    None for N = 0. confidence [N] in 0..1; happened [N]: 0 and 1, or a probability."""
    c, h = np.asarray(confidence, float), np.asarray(happened, float)
    if not len(c):
        return None
    at = _bin(c, bins)
    # per bin: count times the difference of the two means
    apart = np.abs(np.bincount(at, c) - np.bincount(at, h))
    return float(apart.sum() / len(c))


def _bin(confidence: np.ndarray, bins: int) -> np.ndarray:
    return np.clip((confidence * bins).astype(int), 0, bins - 1)


def auc(confidence: Sequence[float], happened: Sequence[float]) -> float | None:
    """Area under the ROC curve: the probability that a hit has a higher confidence than a miss; ties count one half.
    None without hits or without misses."""
    c, h = np.asarray(confidence, float), np.asarray(happened, float) > 0.5
    yes, no = c[h], np.sort(c[~h])
    if not len(yes) or not len(no):
        return None
    below = np.searchsorted(no, yes, "left") + np.searchsorted(no, yes, "right")
    return float(below.mean() / 2 / len(no))


def confidences(lanes: Mapping[tuple[str, str], Trace]) -> pd.DataFrame:
    """One row per verified draft with a confidence: prompt, drafter, position (from 1), confidence (P(accepted | all
    before it accepted)), product (with those before it), judged (the accept rule was applied), and survived (this draft
    and all before it were accepted)."""
    rows = []
    for (prompt, drafter), trace in lanes.items():
        for v in (v for r in trace.rounds for v in r.rows):
            product = 1.0
            for slot, x in enumerate(v.positions[: v.verified]):
                if x.confidence is None:
                    break
                product *= x.confidence
                rows.append(
                    (
                        prompt,
                        drafter,
                        slot + 1,
                        x.confidence,
                        product,
                        x.verdict in ("accepted", "rejected"),
                        v.accepted > slot,
                    )
                )
    data = pd.DataFrame(rows, columns=["prompt", "drafter", "position", "confidence", "product", "judged", "survived"])
    return data.astype({"judged": bool, "survived": bool})


def by_position(data: pd.DataFrame) -> pd.DataFrame:
    """Per position, of the judged drafts in `confidences`: count, mean confidence, share accepted, Wilson interval."""
    rows = []
    for position, part in data[data.judged].groupby("position"):
        hits, n = int(part.survived.sum()), len(part)
        rows.append((int(position), n, float(part.confidence.mean()), hits, hits / n, *wilson(hits, n)))
    return pd.DataFrame(
        rows, columns=["position", "judged", "mean_confidence", "accepted", "share", "share_low", "share_high"]
    )
