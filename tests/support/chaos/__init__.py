"""Campaigns of kills: runs that are killed again and again, and must end as if nothing had happened.

`campaign` kills runs and compares their ends, `__main__` is `make chaos`.
"""
