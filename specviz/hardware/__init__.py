"""Devices: which there are, their measured roofs, and what a forward pass costs on them."""
