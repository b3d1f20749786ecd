"""SpecViz: the page's frame and its navigation. Run with `streamlit run app.py`."""

import streamlit as st

st.set_page_config(page_title="SpecViz", page_icon="🔎", layout="wide")
st.navigation(
    [
        st.Page("pages/decode.py", title="Decode", icon=":material/play_circle:", default=True),
        st.Page("pages/bottleneck.py", title="Bottleneck", icon=":material/speed:"),
    ],
    position="top",
).run()
