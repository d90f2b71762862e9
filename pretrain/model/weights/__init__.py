"""Weights from and to transformers' checkpoints, with no remote code.

In: a folder or a name that transformers knows, or a model of ours. Out: the other. Kept: nothing.
Begin with `names`, which maps one side's names to the other's; `source` reads, `io` converts.
"""
