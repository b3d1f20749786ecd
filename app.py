"""SpecViz: the page's frame and its navigation. Run with `streamlit run app.py`."""

import streamlit as st

st.set_page_config(page_title="SpecViz", page_icon="🔎", layout="wide")
st.navigation(
    [
        st.Page("pages/decode.py", title="Decode", icon=":material/play_circle:", default=True),
    ],
    position="top",
).run()
