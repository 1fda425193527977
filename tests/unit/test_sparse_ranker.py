"""The ranker's classifiers: any block of labels alone gives what libpecos gives for all of them together."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import scipy.sparse as sp
from pecos.xmc.base import MLModel, MLProblem

from elias_ray.artifacts import Folder
from elias_ray.config import Ranker
from elias_ray.errors import UserError
from elias_ray.features import psi
from elias_ray.sparse_ranker import Classifiers, read_classifiers, train_classifiers, write_classifiers

N, F, L = 120, 30, 25
Problem = tuple[sp.csr_matrix, sp.csr_matrix, sp.csr_matrix]  # psi, positives, candidates


def binary(density: float, seed: int) -> sp.csr_matrix:
    matrix = sp.random(N, L, density, "csr", dtype=np.float32, random_state=seed)
    matrix.data[:] = 1
    return matrix


@pytest.fixture(scope="module")
def problem() -> Problem:
    psi_NF = sp.random(N, F, 0.3, "csr", dtype=np.float32, random_state=1)
    somebody_has = sp.diags((np.arange(L) != 7).astype(np.float32))
    positives_NL = sp.csr_matrix(binary(0.05, 2) @ somebody_has)
    positives_NL.eliminate_zeros()
    candidates_NL = sp.csr_matrix(((binary(0.3, 3) + positives_NL) > 0).astype(np.float32))
    return psi_NF, positives_NL, candidates_NL


@pytest.mark.parametrize(("loss", "solver"), [("logistic", "L2R_LR_DUAL"), ("squared hinge", "L2R_L2LOSS_SVC_DUAL")])
def test_blocks_of_labels_and_of_rows_equal_one_problem(
    problem: Problem, loss: Literal["logistic", "squared hinge"], solver: str
) -> None:
    psi_NF, positives_NL, candidates_NL = problem
    whole = MLModel.train(
        MLProblem(psi_NF, positives_NL, sp.identity(L, np.float32, "csc"), candidates_NL),
        threshold=0.0,
        solver_type=solver,
        bias=-1.0,
        threads=1,
    ).W
    labels_L = np.random.default_rng(0).permutation(L)
    for labels_B in np.split(labels_L, [1, 8, 20]):
        rows = np.flatnonzero(np.diff(candidates_NL[:, labels_B].indptr))
        parts = (psi_NF[rows], positives_NL[:, labels_B][rows], candidates_NL[:, labels_B][rows])
        weights_FB = train_classifiers(*parts, Ranker(loss=loss, least_weight=0.0), threads=2)
        assert weights_FB.nnz > 0
        np.testing.assert_array_equal(weights_FB.toarray(), whole[:, labels_B].toarray())


def test_scores_are_sigmoids_of_products(problem: Problem) -> None:
    psi_NF = problem[0]
    classifiers = Classifiers(np.arange(L, dtype=np.int32), train_classifiers(*problem, Ranker()))
    rows_Q, places_Q = np.random.default_rng(1).integers((N, L), size=(200, 2)).T
    scores_Q = classifiers.scores(psi_NF, rows_Q, places_Q, threads=2)
    products_Q = (psi_NF @ classifiers.weights_FB).toarray()[rows_Q, places_Q]
    np.testing.assert_allclose(scores_Q, 1 / (1 + np.exp(-products_Q)), rtol=1e-5)
    assert ((scores_Q > 0) & (scores_Q < 1)).all()


def test_positives_score_above_negatives(problem: Problem) -> None:
    psi_NF, positives_NL, candidates_NL = problem
    classifiers = Classifiers(
        np.arange(L, dtype=np.int32), train_classifiers(psi_NF, positives_NL, candidates_NL, Ranker(cost=10.0))
    )
    pairs = candidates_NL.tocoo()
    scores_Q = classifiers.scores(psi_NF, pairs.row, pairs.col)
    positive_Q = np.asarray(positives_NL[pairs.row, pairs.col]).ravel() > 0
    assert scores_Q[positive_Q].mean() > scores_Q[~positive_Q].mean() + 0.2


def test_on_disk(problem: Problem, tmp_path: Path) -> None:
    classifiers = Classifiers(np.arange(L, dtype=np.int32)[::-1].copy(), train_classifiers(*problem, Ranker()))
    folder = Folder.at(tmp_path)
    entry = write_classifiers(folder, classifiers)
    again = read_classifiers(folder, entry)
    np.testing.assert_array_equal(again.labels_B, classifiers.labels_B)
    np.testing.assert_array_equal(again.weights_FB.toarray(), classifiers.weights_FB.toarray())
    content = bytearray(folder.read(entry.name))
    content[-1] ^= 1
    folder.write(entry.name, bytes(content))
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged"):
        read_classifiers(folder, entry)


def test_psi() -> None:
    tfidf = sp.csr_matrix(np.array([[0.6, 0.8], [0, 0]], np.float32))
    embeddings = np.array([[3, 0, 4], [0, 2, 0]], np.float32)
    expected = [[0.6, 0.8, 0.6, 0.0, 0.8, 1.0], [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]]
    made = psi(tfidf, embeddings)
    assert made.has_sorted_indices
    np.testing.assert_allclose(made.toarray(), expected, rtol=1e-6)
