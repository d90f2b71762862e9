"""Is one model better than another: both scored on one frozen set, with the interval of their difference.

In: two models by name. Out: a `ModelComparison`. Kept: nothing. Begin with `models`; `comparison` holds the result
and the command, which `finetune.compare` shares.
"""
