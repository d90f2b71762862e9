"""The report of a run: one HTML page with its pictures, which needs no network.

In: a run directory. Out: report.html in it. Kept: nothing else; a page that this room did not draw is not replaced.
Begin with `page`, which lays out the `ReportContent` (`section`) of either job. `charts`, `page_text` and `results`
choose what is shown of a pretraining run. `chart` (axes, colours, thinning) and `drawings` (letters, rows) know nothing
of pretraining.
"""
