"""Scores on held-out proteins, in training and by `python -m pretrain.evaluate`.

In: a model and the bins of the validation side. Out: losses with their uncertainty. Kept: nothing.
Begin with `validation`; `scores` holds the results, which `trainer.loop` and `pretrain.summary` read, and names what
scoring hides. `predictions` shows a few proteins residue by residue.
"""
