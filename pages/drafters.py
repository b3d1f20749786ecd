"""Drafters: one prompt through every drafter with one target and seed; cost of a draft, and where drafts fail."""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import drafter_charts_section, drafters_page, frame, lanes_section, rejections_section

frame.ensure()

st.markdown(
    "#### One prompt, one target, one seed; each drafter builds its drafts in its own way: see which is done first."
)
try:
    drafters_page.buttons(drafters_page.controls())
    drafters_page.status()
    shown = drafters_page.shown()
    if shown is None:
        st.info("Nothing recorded and nothing run yet: press Run the lanes.")
    else:
        lanes_section.race(shown)
        drafter_charts_section.speed(shown)
        drafter_charts_section.acceptance(shown)
    drafter_charts_section.cost()
    if shown is not None:
        drafter_charts_section.confidence(shown)
        rejections_section.show(shown)
except SpecVizError as error:
    st.error(str(error))
