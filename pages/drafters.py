"""Drafters: one prompt through every drafter under one verifier and one seed; what a draft costs and where it fails."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import drafters_page, frame, rejections_section

frame.ensure()

st.markdown(
    "#### One prompt, one verifier, one seed, and each drafter builds its guesses another way: see who is done first."
)
try:
    drafters_page.buttons(drafters_page.controls())
    drafters_page.status()
    shown = drafters_page.shown()
    if shown is None:
        st.info("Nothing recorded and nothing run yet: press Run the lanes.")
    else:
        drafters_page.race(shown)
        drafters_page.speed(shown)
        drafters_page.acceptance(shown)
    drafters_page.cost()
    if shown is not None:
        drafters_page.confidence(shown)
        rejections_section.show(shown)
except SpecVizError as error:
    st.error(str(error))
