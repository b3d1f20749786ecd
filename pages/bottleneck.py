"""Bottleneck: why a decode step waits for memory, measured on this machine and modelled on others."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import bottleneck_page, bottleneck_setup, bottleneck_timed, frame, live_load

frame.ensure()

st.markdown("#### A plain step reads every weight to make one token: compute waits. A verify pass uses that wait.")
try:
    setup = bottleneck_setup.controls()
except SpecVizError as error:
    st.error(str(error))
    setup = None
measured = setup is not None and setup.roofs is not None
if setup is not None and setup.here:
    bottleneck_page.measure_ceilings(setup)
if measured:
    bottleneck_page.roofline(setup)
live_load.show()
if measured:
    bottleneck_timed.briefing(setup)
    if setup.here:
        bottleneck_timed.timed(setup)
bottleneck_timed.ledger()
