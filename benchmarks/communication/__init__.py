"""What ranks exchange in a training step, measured: `python -m benchmarks.communication`.

In: engines, a preset. Out: bytes and seconds by engine. Kept: nothing. `expected` computes what an engine's own rules
require, `rank` runs and watches the program, `__main__` launches it and compares.
"""
