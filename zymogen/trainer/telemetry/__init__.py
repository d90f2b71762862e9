"""What a run measures about itself: how fast it is, and how fast the machine could be.

In: steps, and a device. Out: the speed since the last line of metrics, and the device's peak. Kept: the peak, in
run.json. Begin with `speed`; `zymogen.trainer.run.records` writes the lines.
"""
