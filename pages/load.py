"""Load: a small server under arriving requests, with policies for the verify length side by side."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import frame, load_page

frame.ensure()

st.markdown("#### An idle server should verify long drafts, a busy one short ones or none: a scheduler decides.")
try:
    order = load_page.controls()
    load_page.buttons(order)
    load_page.served(order)
    load_page.one_step()
    load_page.counterexample()
    load_page.simulated(order)
except SpecVizError as error:
    st.error(str(error))
