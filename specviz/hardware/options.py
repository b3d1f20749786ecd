"""The names of devices and precisions that a run may ask for. Imports no torch."""

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int4")
