"""Batch: speed-up by K and batch, measured on this machine and modelled on others; where speculation stops paying."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import batch_page, frame

frame.ensure()

st.markdown(
    "#### One row leaves compute idle, so verifying drafts is nearly free. Many rows fill it: then drafts cost time."
)
try:
    batch_page.take_click()
    order = batch_page.controls()
    sweep = batch_page.current(order)
    batch_page.buttons(sweep)
    left, right = st.columns(2, gap="large")
    with left:
        batch_page.measured_map(sweep)
    with right:
        batch_page.modelled_map(order, sweep)
    k, rows = batch_page.choose()
    batch_page.cell(sweep, k, rows)
    batch_page.settings(sweep)
except SpecVizError as error:
    st.error(str(error))
