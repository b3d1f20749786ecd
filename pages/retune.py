"""Retune: teach the hybrid drafter one's own kind of prompt, and measure what that buys."""

import streamlit as st

from specviz.ui import frame, retune_page

frame.ensure()
st.markdown("#### A drafter that has seen your kind of text guesses more of it; what comes out stays the same.")
st.markdown(
    "Retuning moves a drafter's weights, never the target's: more drafts may survive, the text stays. OpenAI "
    "says that retuning a draft model gave GPT-5.6 over 15 % more token efficiency (a vendor's claim; its measure is "
    "not defined). Here you see what it gives for your prompts on this machine, with its interval."
)
retune_page.show()
