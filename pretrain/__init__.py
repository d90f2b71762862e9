"""Pretraining: the encoder, one training step, the loop around it, engines, checkpoints and export.

`python -m pretrain recipes/NAME.toml` under `accelerate launch` is the run. `pretrain.model` holds plain modules that
know nothing of engines; `pretrain.step` is one update, whole; `pretrain.loop` takes steps for any `pretrain.job`, of
which masked language modelling is one. Imports `data`, never `finetune`.
"""
