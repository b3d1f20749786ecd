"""SpecViz: real speculative decoding, decoded, recorded, measured and drawn."""
