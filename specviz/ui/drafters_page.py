"""The Drafters page: its controls, the run of its lanes, and the lanes on screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st

from specviz.bench import lanes as lane_sets
from specviz.bench.lanes import Key, Lanes, LanesRequest
from specviz.drafters.names import drafter_names
from specviz.engine.prompts import PRESETS, preset, presets_for
from specviz.errors import SpecVizError
from specviz.loader.pairs import EMBEDDED, find_pair, names
from specviz.trace import rejections
from specviz.trace.records import MAX_K, Settings, Trace
from specviz.ui import recorded, task
from specviz.ui.address import BOUND


@dataclass(frozen=True)
class Shown:
    """The lanes on screen and their source. `id` changes with them."""

    id: str
    lanes: Mapping[Key, Trace]
    recorded: bool

    @property
    def source(self) -> str:
        """Where the lanes were measured, in words."""
        first = next(iter(self.lanes.values()))
        return f"recorded {recorded.label(first)}" if self.recorded else f"measured here, {first.machine.name}"


# ------------------------------------------------------------------------------------------- running


def _use_preset() -> None:
    if chosen := st.session_state.get("lanes-preset"):
        st.session_state["lanes-prompt"] = preset(chosen).text


def _fit_prompt() -> None:
    """Replace a default prompt that the newly chosen pair cannot read: the toy pair knows six words."""
    wanted = [p.text for p in presets_for(st.session_state["lanes-pair"])]
    others = [p.text for name in ("toy", EMBEDDED) for p in presets_for(name) if p.text not in wanted]
    if st.session_state["lanes-prompt"] in others:
        st.session_state["lanes-prompt"] = wanted[0]


def controls() -> LanesRequest | None:
    """What to run; every control but the lanes is in the address. None, with the reason on screen, if it cannot be."""
    pair_name = st.session_state.get("lanes-pair", EMBEDDED)
    titles = {p.name: p.title for p in presets_for(pair_name)}
    st.pills(
        "Try",
        titles,
        format_func=lambda name: titles[name],
        key="lanes-preset",
        on_change=_use_preset,
        label_visibility="collapsed",
    )
    text = st.text_area("Prompt", PRESETS[0].text, key="lanes-prompt", height=80, max_chars=20_000, **BOUND)
    first, second, third = st.columns(3)
    k = first.slider("K, draft tokens per round", 1, MAX_K, 7, key="lanes-k", **BOUND)
    temperature = second.slider(
        "Temperature",
        0.0,
        2.0,
        0.0,
        0.05,
        key="lanes-temperature",
        **BOUND,
        help="0 is greedy: every lane then has the same text",
    )
    count = third.slider(
        "Prompts",
        1,
        lane_sets.MAX_PROMPTS,
        1,
        key="lanes-count",
        **BOUND,
        help="Yours first, then the pair's test prompts. More prompts give steadier rates",
    )
    st.session_state["lanes-wanted"] = count
    with st.expander("More settings: lanes, length, seed, pair"):
        try:
            return _more(text, Settings(k=k, temperature=temperature))
        except SpecVizError as error:
            st.error(str(error))
            return None


def _more(text: str, settings: Settings) -> LanesRequest:
    """The order, with pair, length, seed and drafters. Raises SpecVizError if it cannot be run."""
    first, second, third = st.columns(3)
    chosen_pair = first.selectbox("Pair", names(), key="lanes-pair", on_change=_fit_prompt, **BOUND)
    length = second.slider("Length, new tokens", 16, 128, 48, 8, key="lanes-length", **BOUND)
    seed = third.number_input("Seed", 0, 2**31, 0, key="lanes-seed", **BOUND, help="The same for every lane")
    pair = find_pair(chosen_pair)
    usual = lane_sets.default_drafters(pair.name)
    drafters = st.pills(
        "Lanes, beside plain decoding",
        drafter_names(pair),
        selection_mode="multi",
        default=usual,
        key=f"lanes-drafters-{pair.name}",
    )
    st.caption(pair.title + ". " + " ".join(pair.notes))
    order = LanesRequest(
        pair=pair.name,
        drafters=tuple(d for d in usual if d in drafters) + tuple(d for d in drafters if d not in usual),
        texts=(text,),
        settings=replace(settings, seed=int(seed), max_new_tokens=length),
        raw=pair.name == "toy",
    )
    Lanes(order)  # raises for what cannot be run
    return order


def current() -> Lanes | None:
    """The session's latest run of lanes."""
    return st.session_state.get("lanes-run")


def buttons(order: LanesRequest | None) -> None:
    """The Run and Stop buttons. Outside every fragment, so that a click interrupts the script."""
    run = current()
    alive = run is not None and run.alive
    with st.container(horizontal=True, vertical_alignment="center"):
        clicked = st.button(
            "Run the lanes",
            type="primary",
            icon=":material/play_arrow:",
            key="lanes-go",
            disabled=order is None,
            help="Decode with every drafter, one after the other, on this machine",
        )
        if clicked and order is not None:
            _start(order, run)
        task.stop_button(run, "lanes-stop")
        if (
            run is not None
            and not alive
            and st.button("Show the recording again", icon=":material/history:", key="lanes-back")
        ):
            del st.session_state["lanes-run"]
            st.rerun()


def _start(order: LanesRequest, before: Lanes | None) -> None:
    if before is not None:
        before.stop()
    count = st.session_state["lanes-wanted"]
    try:
        texts = lane_sets.more_texts(order.pair, order.texts[0], count)
        st.session_state["lanes-run"] = Lanes(replace(order, texts=texts)).start()
    except SpecVizError as error:
        st.session_state["lanes-refused"] = str(error)
        return
    st.session_state.pop("lanes-refused", None)
    st.rerun()


def status() -> None:
    """The run's progress, and its error if it failed."""
    run = current()
    if refused := st.session_state.get("lanes-refused"):
        st.error(refused)
    if run is None:
        return

    def done_so_far() -> None:
        if run.alive and run.traces:
            st.caption(f"{len(run.traces)} lanes are done; Stop keeps and shows them.")

    task.follow(
        run,
        f"Stopped: {len(run.traces)} finished lanes are kept." if run.traces else "Stopped before a lane was finished.",
        done_so_far,
    )


@st.cache_resource(show_spinner=False)
def _recorded() -> dict[Key, Trace]:
    return lane_sets.load()


def shown() -> Shown | None:
    """The lanes on screen: the session's own, or the recorded ones."""
    run = current()
    if run is not None and run.traces:
        found = run.traces
        return Shown(f"{run.id}-{len(found)}", found, False)
    found = _recorded()
    return Shown("recorded", found, True) if found else None


@st.cache_resource(max_entries=12, show_spinner=False)
def judged(set_id: str, _lanes: Mapping[Key, Trace]) -> pd.DataFrame:
    """`rejections.judged`, once for each set of lanes."""
    return rejections.judged(_lanes)
