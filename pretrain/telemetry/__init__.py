"""What a run measures of itself: how fast it is, and how fast the machine could be."""
