"""Blocks: the parts of a file that have a hash each, so that a part of a file can be checked without the rest.

In: a file, and the hashes that its manifest has for it. Out: bytes that are what was written, or `InvalidCheckpoint`.
Kept: nothing. Read `hashes` (how a file is hashed, and read), then `shares` (how ranks deal the work of a start).
"""
