"""Scores on held-out proteins.

In: a model and the bins of the validation side. Out: losses with their uncertainty. Kept: nothing.
"""
