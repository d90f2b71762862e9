"""Fine-tuning stands on pretraining: this package may import `pretrain` and `data`, and nothing imports it.

It holds no module yet. Task heads, for labels of assays, their losses and a job for `pretrain.loop` (docs/jobs.md)
belong here; `tests/test_imports.py` keeps the direction from the first module on.
"""
