"""The proposal: what to train on a corpus that nobody has written a recipe for, with the reason for each value.

In: facts about the corpus, the machine and the time there is. Out: a recipe as commented TOML, and a promise of how
long it takes. Kept: nothing; `pretrain.auto_recipe` asks for the facts, times a few steps and writes the recipe.

Read `rules` first: it holds every number, with its source. `choose` applies them and is a function of plain values.
"""
