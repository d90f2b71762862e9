"""Weights from and to transformers' checkpoints, with no remote code.

In: a folder or Hub name, or a model of this project. Out: shape and weights, or a folder that transformers loads.
Kept: nothing. Begin with `names`, which maps one side's names to the other's; `source` finds what `model.init`
names, `io` converts it, or writes; a run is exported by `pretrain.export`, which calls it.
"""
