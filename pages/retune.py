"""Retune: train the hybrid drafter on your kind of prompt, and measure the gain."""

import streamlit as st

from specviz.ui import frame, retune_page

frame.ensure()
st.markdown("#### A drafter trained on your kind of text has more drafts accepted. The text stays the same.")
st.markdown(
    "Retuning changes a drafter's weights, never the target's: more drafts may be accepted, the text stays. OpenAI "
    "says that retuning a draft model gave GPT-5.6 over 15 % more token efficiency (a vendor's claim; its measure is "
    "not defined). This page measures the gain for your prompts on this machine, with its interval."
)
retune_page.show()
