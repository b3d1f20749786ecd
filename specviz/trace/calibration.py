"""Confidence against what happened: reliability bins, calibration error, AUC, and Wilson's interval of a share.

Plain arrays in, plain numbers out: knows no torch, no model and no page. Training judges drafters by the same measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from specviz.trace.records import Trace

BINS = 10


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share (95 % by default): honest for few trials, where the usual one is too narrow. (0, 1)
    without any trial."""
    if trials == 0:
        return 0.0, 1.0
    share, spread = hits / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def reliability(confidence: Sequence[float], happened: Sequence[float], bins: int = BINS) -> pd.DataFrame:
    """Per bin of equal width that holds anything: low, high, count, mean confidence, hits, share that happened and its
    interval. confidence [N] in 0..1, happened [N] of 0 and 1."""
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
    """Expected calibration error: |mean confidence - share that happened|, weighted by how many fall in each bin. None
    without any confidence. happened [N]: 0 and 1, or a probability."""
    c, h = np.asarray(confidence, float), np.asarray(happened, float)
    if not len(c):
        return None
    at = _bin(c, bins)
    # of each bin: its count times the distance of its two means
    apart = np.abs(np.bincount(at, c) - np.bincount(at, h))
    return float(apart.sum() / len(c))


def _bin(confidence: np.ndarray, bins: int) -> np.ndarray:
    return np.clip((confidence * bins).astype(int), 0, bins - 1)


def auc(confidence: Sequence[float], happened: Sequence[float]) -> float | None:
    """The chance that something that happened had the higher confidence than something that did not; ties count one
    half. None if only one of the two occurs."""
    c, h = np.asarray(confidence, float), np.asarray(happened, float) > 0.5
    yes, no = c[h], np.sort(c[~h])
    if not len(yes) or not len(no):
        return None
    below = np.searchsorted(no, yes, "left") + np.searchsorted(no, yes, "right")
    return float(below.mean() / 2 / len(no))


def confidences(lanes: Mapping[tuple[str, str], Trace]) -> pd.DataFrame:
    """One row per verified draft that came with a confidence: prompt, drafter, position (from 1), confidence (that this
    draft survives given that all before it did), product (of it and all before it), judged (the chain got here), and
    survived (this draft and all before it were accepted)."""
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
    """Of the judged drafts in `confidences`: per position how many, mean confidence, share accepted, interval."""
    rows = []
    for position, part in data[data.judged].groupby("position"):
        hits, n = int(part.survived.sum()), len(part)
        rows.append((int(position), n, float(part.confidence.mean()), hits, hits / n, *wilson(hits, n)))
    return pd.DataFrame(
        rows, columns=["position", "judged", "mean_confidence", "accepted", "share", "share_low", "share_high"]
    )
