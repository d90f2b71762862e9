"""Bins to the input of a model: residues are gathered, masks drawn, tensors laid out.

In: bins as `data.order.plan` gives them, and the folders of the stores. Out: `loader.Step`s of `batch.Batch`es. Kept:
the cursor of the last step. Of the rooms of `data`, this one alone imports torch. Begin with `batch`, then `contents`
(what a job puts into bins), `masking`, `collate` (filled bins to a batch), `loader`.
"""
