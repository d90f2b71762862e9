"""The engine whose weights are the same bits for every number of processes, and the sums that make them so."""
