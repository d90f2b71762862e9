"""Optimizers and the learning rate.

In: settings and a model's parameters. Out: a torch optimizer, and the rate at a number of tokens seen. Kept: moments,
which checkpoints hold by name. Begin with `kinds`, the optimizers that a recipe can name; `schedule` has the learning
rate, `muon` the optimizer itself.
"""
