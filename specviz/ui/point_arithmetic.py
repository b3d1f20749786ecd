"""The numbers behind one point of the roofline: value, formula, and whether counted, modelled or measured."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from specviz import format
from specviz.hardware.costs import Breakdown
from specviz.hardware.roofline import Point
from specviz.trace.records import Ceilings

PICKED = "point"
"""Key of the session's state: the name of the open point. A click on a dot sets it too."""


@dataclass(frozen=True)
class Entry:
    """A point with its name, its source (measured, modelled or run) and, where known, its parts."""

    name: str
    point: Point
    source: str
    label: str = ""
    """The text beside the dot."""
    parts: Breakdown | None = None


def table(entry: Entry, roofs: Ceilings) -> pd.DataFrame:
    """The arithmetic of a point, a line each: name, value, formula, and the kind of number."""
    p = entry.point
    timed = "modelled" if entry.source == "modelled" else "measured"
    roof = "modelled" if roofs.bandwidth_spread[0] == roofs.bandwidth_spread[1] else "measured"
    compute, memory = p.flops / roofs.flops, p.bytes / roofs.bandwidth
    flops = _sum(entry.parts.flops, "FLOP") if entry.parts else "positions x weights x 2, and attention over the cache"
    moved = _sum(entry.parts.bytes, "B") if entry.parts else "weights once, the cache, activations"
    shares = (
        "by assumption nothing"
        if entry.source == "modelled"
        else "launches, Python, and kernels that fall short of the roofs"
    )
    rows = [
        ("FLOPs", format.si(p.flops, "FLOP"), flops, "counted"),
        ("Bytes", format.si(p.bytes, "B"), moved, "counted"),
        ("Intensity", f"{format.number(p.intensity)} FLOP/byte", "FLOPs / bytes", "counted"),
        ("Arithmetic alone", format.seconds(compute), f"FLOPs / {format.si(roofs.flops, 'FLOP/s')}", roof),
        ("Traffic alone", format.seconds(memory), f"bytes / {format.si(roofs.bandwidth, 'B/s')}", roof),
        (
            "The step",
            format.seconds(p.seconds),
            "the slower of the two" if entry.source == "modelled" else "timed on this machine",
            timed,
        ),
        (
            "Roof that binds",
            p.roof,
            f"the intensity is {'below' if p.roof == 'memory' else 'above'} the ridge of "
            f"{format.number(roofs.ridge)} FLOP/byte",
            roof,
        ),
        ("Compute busy", format.percent(p.busy_fraction), "arithmetic alone / the step", timed),
        ("Memory streaming", format.percent(p.stream_fraction), "traffic alone / the step", timed),
        ("Neither", format.percent(p.overhead_fraction), f"1 - the larger of both: {shares}", timed),
        ("Throughput", format.si(p.throughput, "FLOP/s"), "FLOPs / the step", timed),
    ]
    return pd.DataFrame(rows, columns=["What", "Value", "How", "Kind"])


def show(entries: list[Entry], roofs: Ceilings, default: str) -> None:
    """Choose a point, by keyboard or by a click on its dot, and show its arithmetic."""
    names = [entry.name for entry in entries]
    if st.session_state.get(PICKED) not in names:
        st.session_state[PICKED] = default if default in names else names[0]
    chosen = st.selectbox(
        "Open a point", names, key=PICKED, help="Or click its dot. Every number of a point, with its formula."
    )
    entry = entries[names.index(chosen)]
    with st.container(key="arithmetic"):
        st.table(table(entry, roofs).set_index("What"))  # a plain table: its cells wrap, and screen readers read it
    if entry.point.flagged:
        st.warning(entry.point.warning)


def _sum(parts: dict[str, int], unit: str) -> str:
    return " + ".join(f"{name} {format.si(value, unit)}" for name, value in parts.items() if value)
