"""The player component: sends a run's rounds to the browser and hears back where the reader stands.

Protocol. The browser keeps the list of rounds and acknowledges how many it has (state `have`); each call
sends only what is missing. It owns the playhead and reports it (state `step`) on pause, step and end; it
is never sent back. To move it from Python, pass a `seek` with a new id.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from specviz.views import frames
from specviz.views.component_source import load_component
from specviz.views.figures import palette

_source = load_component("player")
_component = st.components.v2.component("specviz_player", html=_source.html, css=_source.css, js=_source.js)
_COLOURS = {
    "roles": dict(palette.ROLES),
    "paper": {
        "ink": palette.INK_ON_LIGHT,
        "muted": palette.MUTED_ON_LIGHT,
        "grid": palette.GRID_ON_LIGHT,
        "paper": palette.PAPER_LIGHT,
    },
}


@dataclass(frozen=True)
class Seek:
    """A request to move the playhead: obeyed once for each new id. Rounds and frames count from 0."""

    id: str
    round: int = 0
    frame: int = 0


@dataclass(frozen=True)
class Playhead:
    """Where the reader stands, as last reported: row, its round and the frame in it, all from 0."""

    row: int
    round: int
    frame: int


def player(
    run,
    *,
    key: str,
    run_id: str,
    streaming: bool = False,
    recorded: str | None = None,
    meta: list[tuple[str, str]] | tuple[tuple[str, str], ...] = (),
    autoplay: bool = False,
    seek: Seek | None = None,
) -> Playhead:
    """Mount the player of one run. Call it in a fragment, since each report reruns what encloses it.

    run: a Trace, or a run that is still going with the same attributes (rounds, pieces, baseline, machine,
    settings, draft_parallel, prompts). run_id: changes whenever another run is shown; the browser then
    starts from an empty list. streaming: rounds are still being added. recorded: says that, where and when
    the run was recorded, and is shown as such. meta: (name, value) facts for the line above the stage.
    autoplay: play on first sight (never if the reader asked for reduced motion).
    """
    state = st.session_state.get(key) or {}
    rows = len(run.prompts)
    row = state.get("row") or 0
    row = row if isinstance(row, int) and 0 <= row < rows else 0
    ceilings = run.machine.ceilings if run.machine else None
    plain = frames.plain_facts(run)
    # what is known about past rounds changes when ceilings or a first baseline are there, and when the run has ended
    stamp = "-".join(
        (
            "live" if streaming else "done",
            "roofs" if ceilings else "bare",
            "plain" if plain["tokens_per_second"] else "alone",
        )
    )
    have = state.get("have") or {}
    known = (have.get("run"), have.get("row"), have.get("stamp")) == (run_id, row, stamp)
    start = int(have.get("count", 0)) if known else 0
    _component(
        key=key,
        data={
            "run": run_id,
            "row": row,
            "rows": rows,
            "stamp": stamp,
            "start": start,
            "rounds": frames.row_rounds(run, row, start),
            "streaming": streaming,
            "recorded": recorded,
            "autoplay": autoplay,
            "meta": [list(fact) for fact in meta],
            "ceilings": {
                "flops": ceilings.flops,
                "bandwidth": ceilings.bandwidth,
                "ridge": ceilings.flops / ceilings.bandwidth,
            }
            if ceilings
            else None,
            "seek": {"id": seek.id, "round": seek.round, "frame": seek.frame} if seek else None,
            "colours": _COLOURS,
        },
        on_have_change=lambda: None,
        on_row_change=lambda: None,
        on_step_change=lambda: None,
    )
    step = (st.session_state.get(key) or {}).get("step") or {}
    if (step.get("run"), step.get("row")) != (run_id, row):
        return Playhead(row, 0, 0)
    return Playhead(row, int(step["round"]), int(step["frame"]))
