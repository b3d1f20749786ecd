"""The controls of a run; all are in the address, so that a link restores them."""

from __future__ import annotations

import sys
from urllib.parse import urlencode

import streamlit as st

from specviz.drafters.names import check_drafter, drafter_names
from specviz.engine.prompts import PRESETS, preset, presets_for
from specviz.engine.request import RunRequest
from specviz.errors import PairError, SpecVizError
from specviz.hardware.options import DEVICES, PRECISIONS
from specviz.loader.pairs import EMBEDDED, Pair, find_pair, names
from specviz.loader.requirements import needs
from specviz.trace.records import MAX_K, MAX_ROWS, Settings
from specviz.ui.address import BOUND

OWN = "a folder of your own"


def _use_preset() -> None:
    if chosen := st.session_state.get("preset"):
        st.session_state["prompt"] = preset(chosen).text


def _fit_prompt() -> None:
    """Replace a default prompt that the newly chosen pair cannot read: the toy pair knows six words."""
    wanted = [p.text for p in presets_for(st.session_state["pair"])]
    others = [p.text for name in ("toy", EMBEDDED) for p in presets_for(name) if p.text not in wanted]
    if st.session_state["prompt"] in others:
        st.session_state["prompt"] = wanted[0]


def prompt_box() -> str:
    """The prompt, with presets above it."""
    pair = st.session_state.get("pair", EMBEDDED)
    titles = {p.name: p.title for p in presets_for(pair)}
    st.pills(
        "Try",
        titles,
        format_func=lambda name: titles[name],
        key="preset",
        on_change=_use_preset,
        label_visibility="collapsed",
    )
    return st.text_area("Prompt", PRESETS[0].text, key="prompt", height=90, max_chars=200_000, **BOUND)


def main_settings(pair: Pair) -> tuple[str, int, float]:
    """Drafter, K and temperature: the settings that are changed most."""
    left, middle, right = st.columns(3)
    names_here = drafter_names(pair)
    with left:
        drafter = st.selectbox(
            "Drafter",
            (*names_here, OWN),
            key="drafter",
            **BOUND,
            help="What drafts the tokens. The target verifies every draft, so the text does not depend on it.",
        )
        if drafter == OWN:
            drafter = _own_drafter()
    with middle:
        k = st.slider(
            "K, draft tokens per round",
            0,
            MAX_K,
            5,
            key="k",
            **BOUND,
            help="0 is plain decoding: one token per pass of the target.",
        )
    with right:
        temperature = st.slider(
            "Temperature",
            0.0,
            2.0,
            0.0,
            0.05,
            key="temperature",
            **BOUND,
            help="0 is greedy: always the most likely token.",
        )
    return drafter, k, temperature


def _own_drafter() -> str:
    """The path of a drafter's folder, typed or from the address."""
    return st.text_input(
        "Its folder",
        key="folder",
        placeholder="path on the machine that runs the app",
        **BOUND,
        help="The folder of a drafter that SpecViz trained, or of a published DFlash or DSpark one for this target.",
    ).strip()


def pair_box() -> Pair:
    """The pair: one of the catalogue, or any two Hub ids or folders typed as TARGET+DRAFT."""
    typed = st.selectbox(
        "Pair",
        names(),
        key="pair",
        accept_new_options=True,
        on_change=_fit_prompt,
        **BOUND,
        help="Target and drafter. Type TARGET+DRAFT with two Hub ids or two folders for a pair of your own.",
    )
    return find_pair(typed or EMBEDDED)


def more_settings(drafter: str, k: int, temperature: float, text: str, pair: Pair) -> RunRequest:
    """All other settings, in an expander. Raises SpecVizError for values that no widget rules out."""
    first, second, third, fourth = st.columns(4)
    with first:
        top_p, top_k = _truncation()
    with second:
        length = st.slider("Length, new tokens", 8, 512, 64, 8, key="length", **BOUND)
        seed = st.number_input("Seed", 0, 2**31, 0, key="seed", help="The same seed gives the same run.", **BOUND)
    with third:
        rows = st.slider(
            "Batch, rows",
            1,
            MAX_ROWS,
            1,
            key="batch",
            **BOUND,
            help="The prompt is decoded in this many rows at once, each with its own seed.",
        )
        raw = st.toggle("Raw text, no chat template", key="raw", **BOUND)
    with fourth:
        device, precision = _device()
    system = st.text_input("System prompt", key="system", placeholder="the template's default", disabled=raw, **BOUND)
    st.fragment(_needs, run_every=None if "torch" in sys.modules else 1.0)(pair, device, precision, rows, 512 + length)
    return RunRequest(
        pair=pair.name,
        drafter=drafter,
        text=text,
        system=system or None,
        raw=raw,
        rows=rows,
        device=device,
        precision=precision,
        settings=Settings(
            k=k, temperature=temperature, top_k=top_k, top_p=top_p, seed=int(seed), max_new_tokens=length
        ),
    )


def _truncation() -> tuple[float, int]:
    """Top-p and top-k."""
    top_p = st.slider(
        "Top-p",
        0.05,
        1.0,
        1.0,
        0.05,
        key="top_p",
        **BOUND,
        help="Keep the smallest set of tokens with this much probability. 1 is off.",
    )
    top_k = st.number_input("Top-k", 0, 1000, 0, key="top_k", **BOUND, help="Keep the k likeliest tokens. 0 is off.")
    return top_p, int(top_k)


def _device() -> tuple[str, str]:
    """Device and precision."""
    device = st.selectbox("Device", DEVICES, key="device", **BOUND)
    precision = st.selectbox(
        "Precision",
        PRECISIONS,
        key="precision",
        **BOUND,
        help="Number format of the target's products. auto is bf16 where the hardware has units for it: a step "
        "then waits for its weights, and verifying drafts costs almost nothing. int4 is the fastest on a CPU, and "
        "leaves little for drafts to save.",
    )
    return device, precision


def _needs(pair: Pair, device: str, precision: str, rows: int, tokens: int) -> None:
    """Download, disk and memory of the pair, before anything is fetched. Waits for the libraries to be loaded."""
    needed = "Its needs are shown once the libraries are loaded."
    if "torch" in sys.modules:
        try:
            needed = f"{needs(pair, device, precision, rows, tokens).sentence} (modelled; free figures measured)"
        except SpecVizError as error:
            needed = str(error)
    st.caption(f"{pair.title}. {needed} " + " ".join(pair.notes))


def order() -> RunRequest | None:
    """All the controls. None, with the reason on screen, if their values cannot be run."""
    text = prompt_box()
    settings = st.container()
    with st.expander("More settings: pair, sampling, length, batch, device"):
        try:
            pair = pair_box()
            with settings:
                drafter, k, temperature = main_settings(pair)
            found = more_settings(drafter, k, temperature, text, pair)
            if not drafter:
                raise PairError("Write the path of the drafter's folder, or choose another drafter.")
            check_drafter(pair, drafter)  # an address can name anything; it never loads code
            return found
        except SpecVizError as error:
            settings.error(str(error))
            return None


def share_link() -> str:
    """An address that reopens this run: the same pair, prompt, settings and seed, started at once."""
    base = (st.context.url or "").split("?")[0]
    return f"{base}?{urlencode({**st.query_params.to_dict(), 'go': '1'})}"
