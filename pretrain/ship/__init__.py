"""What leaves a run: a model directory that transformers loads, and its card.

In: a trained model. Out: export/. Kept: nothing else.
Begin with `export`; how weights are named there stands in `pretrain.model.weights`.
"""
