"""Fine-tuning stands on pretraining: this package may import `pretrain` and `data`, and nothing imports it.

It takes assay tables in which most cells may be empty, and trains heads for all of their tasks at once, on the loop,
the engines and the checkpoints of pretraining (`pretrain.loop`, docs/jobs.md). `tests/test_imports.py` keeps the
direction, and which rooms may know each other.
"""
