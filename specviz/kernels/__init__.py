"""The C kernels for CPUs: products with packed weights, attention, whole layers; compiled once, called by ctypes."""
