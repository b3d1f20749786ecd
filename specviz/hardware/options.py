"""Names of devices and precisions that a run may choose. Imports no torch."""

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int4")
