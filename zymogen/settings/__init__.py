"""Settings: how they are declared, and how files are read into them.

In: TOML and overrides from the command line, or JSON. Out: frozen dataclasses whose values are checked. State: none.
`section` declares a field, `toml_file` reads a recipe, `json_file` a file that the program wrote. `origin`
names the place of a wrong value in an error.
"""
