"""Drafters: one prompt through every drafter under one verifier and one seed; what a draft costs and where it fails."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import drafters, failures, frame

frame.ensure()

st.markdown("#### One prompt, one verifier, one seed, and each drafter builds its guesses another way: see who is done "
            "first.")
try:
    drafters.buttons(drafters.controls())
    drafters.status()
    shown = drafters.shown()
    if shown is None:
        st.info("Nothing recorded and nothing run yet: press Run the lanes.")
    else:
        drafters.race(shown)
        drafters.speed(shown)
        drafters.acceptance(shown)
    drafters.cost()
    if shown is not None:
        drafters.confidence(shown)
        failures.show(shown)
except SpecVizError as error:
    st.error(str(error))
