"""What leaves a run, a model directory that transformers loads and its card: `python -m pretrain.export`.

In: a trained model. Out: export/, compared with what was trained; a contact head put into one. Kept: that folder.
Begin with `export`; `pretrain.model.weights` converts the weights for it.
"""
