"""The encoders of ESM-2 and ESM C on flat batches, in plain PyTorch.

Begin with `masked_language_model`, the model that is trained, then read `encoder`, `layer` and `attention`. Heads for
assays belong in `finetune`. `settings` holds what a recipe says about the model, `presets` its sizes, `initialization`
its first weights; `weights` reads and writes transformers' checkpoints.
"""
