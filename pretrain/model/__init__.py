"""The ESM-2 encoder on flat batches, in plain PyTorch.

Reading order: `masked_language_model` (what is trained), `encoder` (a layer, whole), `attention`, `dropout`; `settings`
are what a recipe says of it, `presets` says which sizes there are, `initial` how weights begin, `weights` how they come
and go.
"""
