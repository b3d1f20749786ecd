"""Load: a small server under arriving requests, with policies for the verify length side by side."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import frame, load

frame.ensure()

st.markdown("#### An idle server should verify long drafts, a busy one short ones or none: a scheduler decides.")
try:
    order = load.controls()
    load.buttons(order)
    load.served(order)
    load.one_step()
    load.counterexample()
    load.simulated(order)
except SpecVizError as error:
    st.error(str(error))
