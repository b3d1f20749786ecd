"""Accept rule: p, q and u to change, wrong rules and their effect, and proof that nothing is lost."""

import streamlit as st

from specviz.ui import accept_rule_choice, accept_rule_page, conventions, frame
from specviz.ui.proof import proof

frame.ensure()
st.markdown("#### Accept a draft with probability min(1, p/q), else draw from the leftover: the result follows p.")
chosen = accept_rule_choice.choose()
accept_rule_page.show(chosen)
with st.expander("All rules, right and wrong"):
    accept_rule_page.compare(chosen)
if chosen.trace is not None:
    proof(chosen.trace, key="rule-proof")
    conventions.panel(chosen.trace, key="rule-conventions")
