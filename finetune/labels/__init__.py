"""Labels: those that were observed, in memory, on disk beside the token store, and in a batch.

In: labels of tasks. Out: a label store, filled bins. NumPy alone, except where a batch is laid out.
"""
