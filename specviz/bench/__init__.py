"""Speed: benchmarks of drafters, precisions and other programs, sweeps over K and batch, recorded lanes."""
