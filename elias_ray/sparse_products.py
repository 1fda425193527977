"""Products of sparse matrices of which only the heaviest entries of each row are wanted: centroids, the adjacency.

The whole product may be far larger than memory, so it is made and cut a block of rows at a time.
"""

import numpy as np
import scipy.sparse as sp

BLOCK_ENTRIES = 1 << 25  # products summed at a time


def heaviest_product(left: sp.csr_matrix, right: sp.csr_matrix, most: int) -> sp.csr_matrix:
    """The `most` heaviest entries of each row of left @ right; float32."""
    products = left.astype(bool).astype(np.float32) @ np.diff(right.indptr).astype(np.float32)  # summed for each row
    block_of = (np.cumsum(products, dtype=np.float64) // BLOCK_ENTRIES).astype(np.int64)
    starts = np.flatnonzero(np.diff(block_of, prepend=-1))
    blocks = [
        heaviest(left[start:stop] @ right, most)
        for start, stop in zip(starts, [*starts[1:], len(block_of)], strict=True)
    ]
    return _stack(blocks)


def heaviest(matrix: sp.csr_matrix, most: int) -> sp.csr_matrix:
    """The `most` entries of greatest absolute value of each row; of equal ones the smaller columns."""
    kept = np.ones(matrix.nnz, np.bool_)
    for row in np.flatnonzero(np.diff(matrix.indptr) > most):
        entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
        weights = np.abs(matrix.data[entries])
        lightest_kept = np.partition(weights, -most)[-most]
        equal = np.flatnonzero(weights == lightest_kept)
        kept_of_row = weights > lightest_kept
        room = most - np.count_nonzero(kept_of_row)
        kept_of_row[equal[np.argsort(matrix.indices[entries][equal])[:room]]] = True
        kept[entries] = kept_of_row
    lengths = np.minimum(np.diff(matrix.indptr), most)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_matrix((matrix.data[kept], matrix.indices[kept], indptr), shape=matrix.shape)


def _stack(blocks: list[sp.csr_matrix]) -> sp.csr_matrix:
    """As scipy's vstack, but emptying the list on the way: the blocks and the whole never stand side by side."""
    lengths = np.concatenate([np.diff(block.indptr) for block in blocks])
    shape = (len(lengths), blocks[0].shape[1])
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    data = np.empty(indptr[-1], np.float32)
    indices = np.empty(indptr[-1], np.int32)
    stop = len(data)
    while blocks:
        block = blocks.pop()
        start = stop - block.nnz
        data[start:stop], indices[start:stop] = block.data, block.indices
        stop = start
    return sp.csr_matrix((data, indices, indptr), shape=shape)
