"""Decode: a real run, step by step, forwards and backwards."""

import streamlit as st

from specviz.ui import controls, conventions, preparing, run_section, stage
from specviz.ui.proof import proof

st.markdown("#### A small drafter proposes tokens, the target verifies them in one pass: watch it on a real model.")
order = controls.order()
preparation = st.container()
if order is not None and st.query_params.get("go") == "1" and stage.current() is None:
    stage.start(order)
stage.buttons(order)
stage.show()
if (trace := stage.shown_trace()) is not None:
    run_section.show(trace)
    proof(trace)
    with st.expander("The same run by every convention: acceptance rates and lengths, each with its formula"):
        conventions.panel(trace)
run_section.opener()
with preparation:  # last, so that its imports do not delay the first paint
    preparing.show()
