"""What a recipe may say about data, and how a recipe file is read.

In: TOML and overrides from the command line. Out: frozen dataclasses whose values are checked. Kept: nothing.
Begin with `settings`, and `packing`, which holds the settings of packing alone; `setting` declares one field,
`toml_file` reads a file into any dataclass. `json_file` does the same for files that the program writes itself.
`wording` puts numbers, times and rows into words, as a proposal prints them.
"""
