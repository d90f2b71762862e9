"""The order of training: which sequence, crop and bin come when, by integer arithmetic in NumPy alone.

In: the number of records of each corpus, their lengths, the settings, a seed and a position. Out: bins, and the rank
that takes each. Kept: nothing; the whole state is a `plan.Cursor`. Begin with `sampler` (the order of records,
and which corpus is next), `weighted_epochs` (groups by their number of draws), `packing` (documents to bins), `plan`
(bins of a step), `balance` (bins to ranks).
"""
