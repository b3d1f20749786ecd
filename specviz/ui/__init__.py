"""The pages. The only package that imports Streamlit."""
