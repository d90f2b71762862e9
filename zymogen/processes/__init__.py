"""Processes: their `environment`, `resources` (cores and memory), `parent`, and signals of a process group."""
