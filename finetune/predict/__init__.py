"""Predictions of a fine-tuned model for each row of a table: `python -m finetune.predict`.

In: a bundle, and proteins. Out: values of each task, and how close each protein is to the training set. Kept: nothing.
Begin with `predictor`; `checked_rows` refuses what a model cannot take, `relatives` finds the nearest training protein.
"""
