"""Fine-tuning stands on pretraining: this package may import `pretrain` and `data`, and nothing imports it.

It holds no module yet; `tests/test_layout.py` keeps the direction from the first one on.
"""
