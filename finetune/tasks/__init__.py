"""Tasks: what a column of an assay table asks the model to predict, and its labels as numbers.

In: the recipe's `[[tasks]]` and a table as text. Out: labels, and what turns a prediction back into the user's unit.
"""
