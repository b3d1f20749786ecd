"""The record of a run, and every figure that is counted from it. Imports no torch."""
