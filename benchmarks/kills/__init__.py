"""Training programs that are killed again and again: what their last weights have seen, and whether they are the same.

`python -m benchmarks.kills`; `peers` are the programs of others, `killed` kills them and reads what they did.
"""
