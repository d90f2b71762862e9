"""ProteinGym (Notin et al. 2023, https://doi.org/10.1101/2023.12.07.570727): a model's scores beside its assays.

In: the reference file, a folder of assays, a model. Out: columns of scores in the assays; how well they rank. Kept:
nothing. Begin with `reference`; `figures` says how an assay and all of them are measured.
"""
