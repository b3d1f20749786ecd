"""Batch: speed-up over K and batch, measured here and modelled elsewhere; where speculation stops paying."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import batch, frame

frame.ensure()

st.markdown("#### One row leaves compute idle, so checking drafts is nearly free. Many rows fill it, and the line is "
            "crossed.")
try:
    batch.take_click()
    order = batch.controls()
    sweep = batch.current(order)
    batch.buttons(sweep)
    left, right = st.columns(2, gap="large")
    with left:
        batch.measured_map(sweep)
    with right:
        batch.modelled_map(order, sweep)
    k, rows = batch.choose()
    batch.cell(sweep, k, rows)
    batch.settings(sweep)
except SpecVizError as error:
    st.error(str(error))
