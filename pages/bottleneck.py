"""Bottleneck: why a decode step waits for memory, measured on this machine and modelled on others."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import bottleneck, frame, watch

frame.ensure()

st.markdown("#### A plain step reads every weight to make one token: compute waits. A verify pass uses that wait.")
try:
    setup = bottleneck.controls()
    if setup.here:
        bottleneck.measure_ceilings(setup)
    if setup.roofs is not None:
        bottleneck.roofline(setup)
        bottleneck.briefing(setup)
        if setup.here:
            bottleneck.timed(setup)
    bottleneck.ledger()
    watch.show()
except SpecVizError as error:
    st.error(str(error))
