"""Which sequence, which crop and which bin come when: integer arithmetic in NumPy alone.

In: the number of records of each corpus, their lengths, the settings, a seed and a position. Out: bins, and which rank
takes which. Kept: nothing; the whole state is a `plan.Cursor`. Begin with `permutation`, `sampler`, `plan`, `dealing`.
"""
