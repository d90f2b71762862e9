"""Checkpoints: written whole or not at all, each byte compared with its hash in the buffer from which it is used.

Read in this order: canonical (how JSON is written and checked), manifest (what is recorded), blocks (how files are
written, hashed and read), index (which file holds which elements), digests (numbers that no sharding changes), commit
(written under a temporary name, then published under the final one), load (find and verify), reader (what one or
several ranks read), restore (into a model and its optimizer; how parameters that are not trained are identified), best
(which one a job selects), retention (what is kept), free_space (whether the disk has room for that), writer (a copy,
and a thread that writes it beside training), saver (all of an attempt, when one is due, and what happens if the disk
refuses one).
"""
