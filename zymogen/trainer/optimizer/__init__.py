"""Optimizers and the learning rate.

In: settings and a model's parameters. Out: a torch optimizer, and the rate at a number of tokens seen. Kept: moments,
which checkpoints hold by name. Begin with `groups`, which says how fast each parameter is
trained, makes the optimizer and computes the learning rate.
"""
