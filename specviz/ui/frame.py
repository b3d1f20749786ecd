"""The frame around every page: title, width and navigation."""

from __future__ import annotations

from contextvars import ContextVar

import streamlit as st

_inside: ContextVar[bool] = ContextVar("inside the frame", default=False)


def show() -> None:
    """Draw the navigation and run the current page. The icon is an emoji, since a named one would be fetched."""
    st.set_page_config(page_title="SpecViz", page_icon="🔎", layout="wide")
    page = st.navigation(
        [
            st.Page("pages/decode.py", title="Decode", icon=":material/play_circle:", default=True),
            st.Page("pages/drafters.py", title="Drafters", icon=":material/edit_note:"),
            st.Page("pages/bottleneck.py", title="Bottleneck", icon=":material/speed:"),
            st.Page("pages/batch.py", title="Batch", icon=":material/grid_on:"),
            st.Page("pages/load.py", title="Load", icon=":material/dns:"),
            st.Page("pages/retune.py", title="Retune", icon=":material/model_training:"),
            st.Page("pages/accept_rule.py", title="Accept rule", icon=":material/gavel:"),
        ],
        position="top",
    )
    token = _inside.set(True)
    try:
        page.run()
    finally:
        _inside.reset(token)


def ensure() -> None:
    """First line of every page but the first: draws the frame around the page if app.py did not.

    Until a server's first session has drawn the navigation, Streamlit runs a linked page without app.py."""
    if not _inside.get():
        show()
        st.stop()
