"""Scores on held-out proteins.

In: a model and the bins of the validation side. Out: losses with their uncertainty. Kept: nothing.
Begin with `evaluate`; `scores` is what the loop and the closing words read of it.
"""
