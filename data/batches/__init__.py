"""Bins to the input of a model: residues are gathered, masks drawn, tensors laid out. Only this room imports torch.

In: bins of a plan, and the folders of the stores. Out: `loader.Step`s of `batch.Batch`es. Kept: the cursor of the last
step. Begin with `batch`, then `contents`, `masking`, `collate`, `loader`.
"""
