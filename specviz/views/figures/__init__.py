"""Plotly charts: plain data in, a figure out."""
