"""The model card: README.md of what leaves a run, with its evidence, and the pictures that lie beside it.

In: a run directory, or what a fine-tuned bundle knows. Out: the text of a card, and SVG files. Kept: those files.
Begin with `card`, the card of a run's export; `text` is what every card is made of. A number on a card stands in
run.json or metrics.jsonl, or in bundle.json; what the run does not know is called not measured.
"""
