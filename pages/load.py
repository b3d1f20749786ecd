"""Load: a small server under arriving requests, with policies for the verify length side by side."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import frame, load_page, load_scheduler_section, load_simulation_section

frame.ensure()

st.markdown("#### An idle server should verify long drafts, a busy one short drafts or none: a scheduler decides.")
try:
    order = load_page.controls()
    load_page.buttons(order)
    load_page.served(order)
    load_scheduler_section.one_step()
    load_scheduler_section.counterexample()
    load_simulation_section.simulated(order)
except SpecVizError as error:
    st.error(str(error))
