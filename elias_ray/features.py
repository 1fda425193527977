"""psi(x): tf-idf of the words of a text.

The vectoriser is scikit-learn's, taken apart so that no process needs the whole corpus: every shard counts its own
words under its own numbering (CountVectorizer), the numberings are merged, and every shard weights its counts
(TfidfTransformer) with the document frequencies of all training texts. The result equals TfidfVectorizer's.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.preprocessing import normalize

Ids = npt.NDArray[np.int32]


def count_terms(texts: Sequence[str]) -> tuple[sp.csr_matrix, list[str]]:
    """Counts (texts x local terms) and the local terms."""
    vectoriser = CountVectorizer(dtype=np.float32)
    try:
        counts = vectoriser.fit_transform(texts)
    except ValueError:  # no text has a word
        return sp.csr_matrix((len(texts), 0), dtype=np.float32), []
    return sp.csr_matrix(counts), vectoriser.get_feature_names_out().tolist()


class Dictionary:
    """Merges local numberings of names into one, adding up how often each name was counted."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._counts = np.zeros(0, np.int64)

    def add(self, names: Sequence[str], counts: npt.NDArray[np.int64]) -> Ids:
        """The merged id of each local name, in order of arrival; `in_order` gives lasting ones."""
        ids = np.fromiter((self._ids.setdefault(name, len(self._ids)) for name in names), np.int32, len(names))
        if len(self._ids) > len(self._counts):
            grown = np.zeros(2 * len(self._ids), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        self._counts[ids] += counts  # local names are distinct
        return ids

    def in_order(
        self, least: int = 0, most: int | None = None, numeric: bool = False
    ) -> tuple[list[str], npt.NDArray[np.int64], Ids]:
        """Sorted names with their counts, and merged id -> place among them.

        Names counted less than `least` times, and all but the `most` most counted, are left out: their place is -1.
        With `numeric`, names that are all numbers are sorted as such.
        """
        names = list(self._ids)
        counts = self._counts[: len(names)]
        numeric = numeric and all(name.isascii() and name.isdigit() for name in names)
        order = sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]) if numeric else names[i])
        ranked = np.array(order, np.int64)
        ranked = ranked[counts[ranked] >= least]
        if most is not None and len(ranked) > most:
            top = np.argsort(-counts[ranked], kind="stable")[:most]
            ranked = ranked[np.sort(top)]
        final = np.full(len(names), -1, np.int32)
        final[ranked] = np.arange(len(ranked), dtype=np.int32)
        return [names[i] for i in ranked], counts[ranked], final


def inverse_document_frequency(document_frequency: npt.NDArray[np.int64], num_texts: int) -> npt.NDArray[np.float32]:
    """scikit-learn's smoothed idf: as if one more text held every term."""
    return (np.log((1 + num_texts) / (1 + document_frequency)) + 1).astype(np.float32)


def weigh(
    counts: sp.csr_matrix, terms: Ids, idf: npt.NDArray[np.float32], num_terms: int, sublinear_tf: bool
) -> sp.csr_matrix:
    """Counts over local terms -> tf-idf over all terms, rows of norm 1.

    `terms` are the final columns of the local terms (-1: left out), `idf` their weights.
    """
    kept = np.flatnonzero(terms >= 0)
    counts = counts[:, kept]
    transformer = TfidfTransformer(sublinear_tf=sublinear_tf)
    transformer.idf_ = idf[kept]
    weighted = transformer.transform(counts) if len(kept) else counts
    columns = terms[kept][weighted.indices]
    return unit_rows(sp.csr_matrix((weighted.data, columns, weighted.indptr), shape=(counts.shape[0], num_terms)))


def psi(tfidf_NF: sp.csr_matrix, embeddings_ND: npt.NDArray[np.float32]) -> sp.csr_matrix:
    """psi(x) of the ranker, [tf-idf, phi / |phi|, 1], the last for a bias: (N, F + D + 1)."""
    ones_N1 = sp.csr_matrix(np.ones((len(embeddings_ND), 1), np.float32))
    parts = [tfidf_NF, sp.csr_matrix(normalize(embeddings_ND)), ones_N1]
    return sp.hstack(parts, format="csr", dtype=np.float32)


def unit_rows(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Rows of L2 norm 1 (empty rows stay empty), columns in order."""
    return sp.csr_matrix(normalize(matrix.sorted_indices()))
