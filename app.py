"""SpecViz: run with `streamlit run app.py`."""

from specviz.ui import frame

frame.show()
