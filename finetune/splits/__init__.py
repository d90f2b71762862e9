"""Splits: which records train, validate and test, what is held out together, and an audit of what is left in common.

In: settings, a table, records. Out: `SplitParts`, split.csv, a `SplitAudit`, and the words in which a split may be
described. Begin with `parts`, then `split`.
"""
