"""The ESM-2 encoder on flat batches, in plain PyTorch.

Reading order: `masked_language_model` (what is trained), `encoder` (a layer, whole), `attention`, `rotary`, `dropout`;
`presets` says which sizes there are, `initial` how weights begin, `transformers_io` how they come and go.
"""
