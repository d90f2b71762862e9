"""What ranks tell one another in a training step, measured: `python -m benchmarks.communication`."""
