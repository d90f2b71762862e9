"""Slurm: a real one of one node, whose daemons end with the test, and stand-ins of its commands."""
