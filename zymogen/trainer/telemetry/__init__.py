"""What a run measures about its machine: memory, how fast products are, and what other programs use.

In: a device. Out: bytes, and the device's peak. Kept: nothing. The speed of steps is measured
by `zymogen.trainer.metrics_log`.
"""
