"""The lanes component: sends the lanes of one prompt to the browser and hears which round was picked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from specviz.trace.records import Trace
from specviz.views import timeline
from specviz.views.component_source import load_component
from specviz.views.figures import palette

_source = load_component("lanes")
_component = st.components.v2.component("specviz_lanes", html=_source.html, css=_source.css, js=_source.js)


@dataclass(frozen=True)
class Picked:
    """A round that the reader clicked: `id` is new for every click, `round` counts from 0."""

    id: str
    drafter: str
    round: int


def lanes(named: Sequence[tuple[str, Trace]], key: str, id: str, source: str, meta: str) -> Picked | None:
    """Show the lanes of one prompt on a common clock; call it in a fragment, since a pick reruns what encloses it.

    named: (drafter, its trace) from top to bottom. id: changes whenever other lanes are shown. source: the badge, e.g.
    recorded; meta: what ran, in a line. Returns the latest pick among these lanes.
    """
    _component(
        key=key,
        data={
            "id": id,
            "lanes": timeline.lanes_data(named),
            "builds": timeline.BUILDS,
            "source": source,
            "meta": meta,
            "colours": dict(palette.ROLES),
        },
        on_picked_change=lambda: None,
    )
    picked = (st.session_state.get(key) or {}).get("picked") or {}
    if picked.get("set") != id:
        return None
    return Picked(str(picked["id"]), str(picked["lane"]), int(picked["round"]))
