"""Bottleneck: why a decode step is bound by memory, measured on this machine and modelled on others."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import bottleneck_page, bottleneck_setup, bottleneck_timed, frame, live_load

frame.ensure()

st.markdown("#### A plain step reads every weight for one token, so compute waits. A verify pass uses that wait.")
try:
    setup = bottleneck_setup.controls()
except SpecVizError as error:
    st.error(str(error))
    setup = None
roofs = None if setup is None else setup.roofs
if setup is not None and setup.here:
    bottleneck_page.measure_ceilings(setup)
if setup is not None and roofs is not None:
    bottleneck_page.roofline(setup, roofs)
live_load.show()
if setup is not None and roofs is not None:
    bottleneck_timed.briefing(setup, roofs)
    if setup.here:
        bottleneck_timed.timed(setup, roofs)
bottleneck_timed.ledger()
