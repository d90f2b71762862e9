"""The report of a run: one HTML page with its pictures, which needs no network.

In: a run directory. Out: report.html in it. Kept: nothing else; a page that this room did not draw is not replaced.
Begin with `page`. `history` reads a run, `charts` and `page_text` choose what is shown of it;
`drawings` draws contact maps, letters and rows. `chart` (axes, colours, thinning) knows nothing of pretraining, so that
other reports can use it.
"""
