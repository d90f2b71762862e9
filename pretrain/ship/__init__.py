"""What leaves a run: a model directory that transformers loads, and its card.

In: a trained model. Out: export/. Kept: nothing else.
"""
