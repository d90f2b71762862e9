"""What a model must beat: simple predictors of hidden residues, fitted on the corpus of a recipe in a minute or two.

In: a recipe, whose corpora are opened. Out: `CorpusBaseline`s, each with its scores. Kept: nothing.
Begin with `fit`; `predictors` holds what every predictor sees, and each kind.
"""
