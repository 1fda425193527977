"""Parabel as Omikuji has it: three balanced trees of labels, linear classifiers on tf-idf at their nodes."""

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from omikuji import Model

from elias_ray.peers import Case
from elias_ray.predictions import TOP_K

BEAM = 50  # Omikuji's own 10 leaves too few labels for R@100


@dataclass(frozen=True)
class Parabel:
    case: Case
    model: Any

    def predict(self) -> sp.csr_matrix:
        prepared = self.case.member.prepared
        self.model.init_prediction_thread_pool(self.case.threads)
        found = []
        for pairs in feature_pairs(prepared.tfidf("test")):
            found.append(self.model.predict(pairs, beam_size=BEAM, top_k=TOP_K))
        counts = [len(best) for best in found]
        labels = [label for best in found for label, _ in best]
        scores = [score for best in found for _, score in best]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        return sp.csr_matrix((scores, labels, indptr), shape=(len(found), prepared.num_labels))

    def save(self, folder: Path) -> None:
        self.model.save(str(folder))


def train(case: Case) -> Parabel:
    prepared = case.member.prepared
    psi_NF, labels_NL = prepared.tfidf("train"), prepared.labels("train")
    rows = [(row, pairs) for row, pairs in enumerate(feature_pairs(psi_NF)) if pairs]  # it cannot read one without
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:  # the one form that Omikuji reads
        file.write(f"{len(rows)} {psi_NF.shape[1]} {prepared.num_labels}\n")
        for row, pairs in rows:
            labels = ",".join(map(str, labels_NL.indices[labels_NL.indptr[row] : labels_NL.indptr[row + 1]]))
            file.write(f"{labels} {' '.join(f'{column}:{value:.6g}' for column, value in pairs)}\n")
        file.flush()
        return Parabel(case, Model.train_on_data(file.name, n_threads=case.threads))


def feature_pairs(matrix_NF: sp.csr_matrix) -> "list[list[tuple[int, float]]]":
    """Of every row its columns, in order, with their values."""
    matrix_NF = matrix_NF.sorted_indices()
    columns, values, ends = matrix_NF.indices.tolist(), matrix_NF.data.tolist(), matrix_NF.indptr.tolist()
    return [list(zip(columns[start:end], values[start:end], strict=True)) for start, end in itertools.pairwise(ends)]
