"""Losses: for each task, the sum over its targets.

In: what a head gives each target, labels, a `Task`. Out: sums, float32. Kept: nothing. A label that is missing has no
target, so nothing here knows of masks. The task's type gives the loss of each target.
"""
