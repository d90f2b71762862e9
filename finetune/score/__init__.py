"""Scores of variants: how much fitter than its wild type a pretrained model takes a protein to be.

In: a model, targets, variants. Out: a number for each variant, and why one has none. Kept: nothing. Begin with
`plan`, which defines the numbers, then `scorer`.
"""
