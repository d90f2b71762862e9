"""What hangs together: connected components of nodes that are linked two by two.

In: pairs of numbers. Kept: nothing.
"""

import numpy as np
from numpy.typing import NDArray


def find_components(nodes: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """(nodes,) the number of each node's component, given the two ends of each link."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first), np.bool_), (first, second)), shape=(nodes, nodes))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)
