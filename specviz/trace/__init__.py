"""The record of a run, its file format, and the metrics computed from it; without torch."""
