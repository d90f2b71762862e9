"""Losses: for each type of task, the sum over its targets.

In: what a head gives each target, labels, a `Task`. Out: sums, float32. Kept: the parameters of learned weights. A
label that is missing has no target, so nothing here knows of masks. `loss` holds a function for each type of task, and
`LearnedBalance`, which learns a weight for each.
"""
