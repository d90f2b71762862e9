"""Looking at a table before anything is trained: what each column is, and a recipe that trains, with every guess said.

In: a table of any form. Out: words for the user, and a recipe. Torch is not imported.
"""
