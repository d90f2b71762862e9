"""Optimizers and the learning rate.

In: settings and a model's parameters. Out: a torch optimizer, and the rate at a number of tokens seen. Kept: moments,
which checkpoints hold by name. Begin with `groups`, then `build`, which also computes the learning rate.
"""
