"""The sparse ranker: one linear classifier a label on psi(x), q = sigma(w . psi(x)), by LIBLINEAR in libpecos.

A classifier is trained on the points whose best labels by the model include its label, and on its positives, so it
learns what the model confuses. Labels are independent of each other: any block of them can be trained alone, and comes
out the same.

Legend: N points, F features (terms, embedding, bias), B labels of a block, Q pairs of a point and a label.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import scipy.sparse as sp
from pecos.core import clib
from pecos.xmc.base import MLModel, MLProblem
from scipy.special import expit

from elias_ray import config as configs
from elias_ray.artifacts import FileEntry, Folder, committed

if TYPE_CHECKING:  # actors train it without torch
    from elias_ray.workers import Workers

WEIGHTS = "weights.safetensors"
WITHIN = (np.finfo(np.float32).tiny, np.float32(1 - 2**-24))  # of q, which would else round to 1
SOLVERS = {"logistic": "L2R_LR_DUAL", "squared hinge": "L2R_L2LOSS_SVC_DUAL"}

Ids = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Classifiers:
    """Of the labels of a block."""

    labels_B: npt.NDArray[np.int32]
    weights_FB: sp.csc_matrix

    def scores(self, psi_NF: sp.csr_matrix, rows_Q: Ids, places_Q: Ids, threads: int = 1) -> npt.NDArray[np.float32]:
        """q of these pairs: a row of psi and a place among the labels each. (Q,)"""
        rows_Q, places_Q = (np.ascontiguousarray(ids, np.uint32) for ids in (rows_Q, places_Q))
        products_Q = clib.sparse_inner_products(psi_NF, self.weights_FB, rows_Q, places_Q, threads=threads)
        return expit(products_Q).clip(*WITHIN)


def train_classifiers(
    psi_NF: sp.csr_matrix,
    positives_NB: sp.csr_matrix,
    candidates_NB: sp.csr_matrix,
    settings: configs.Ranker,
    threads: int = 1,
) -> sp.csc_matrix:
    """The weights, (F, B), each label's from the rows where it is a candidate; positives are among the candidates."""
    alone_BB = sp.identity(positives_NB.shape[1], np.float32, format="csc")  # each label a cluster of its own
    problem = MLProblem(psi_NF, positives_NB.astype(np.float32), alone_BB, candidates_NB.astype(np.float32))
    model = MLModel.train(
        problem,
        threshold=settings.least_weight,
        solver_type=SOLVERS[settings.loss],
        Cp=settings.cost,
        Cn=settings.cost,
        eps=settings.tolerance,
        max_iter=settings.iterations,
        bias=-1.0,  # psi has a column for it
        threads=threads,
    )
    weights_FB = sp.csc_matrix(model.W)
    weights_FB.eliminate_zeros()  # libpecos keeps them where nothing is dropped
    assert weights_FB.shape == (psi_NF.shape[1], positives_NB.shape[1]), weights_FB.shape
    return weights_FB


def write_classifiers(folder: Folder, classifiers: Classifiers) -> FileEntry:
    weights = classifiers.weights_FB
    tensors = {
        "labels": classifiers.labels_B.astype(np.int32),
        "indptr": weights.indptr.astype(np.int64),
        "indices": weights.indices.astype(np.int32),
        "data": weights.data.astype(np.float32),
        "num_features": np.array([weights.shape[0]], np.int64),
    }
    return folder.write(WEIGHTS, safetensors.numpy.save(tensors))


def read_classifiers(folder: Folder, entry: FileEntry) -> Classifiers:
    tensors = safetensors.numpy.load(folder.read_checked(entry))
    shape = (int(tensors["num_features"][0]), len(tensors["labels"]))
    weights = sp.csc_matrix((tensors["data"], tensors["indices"], tensors["indptr"]), shape=shape)
    return Classifiers(tensors["labels"], weights)


def read_ranker(folder: Folder, workers: "Workers") -> Classifiers:
    """This worker's blocks of a ranker that is through, as one."""
    manifest = committed(folder / "model")
    assert manifest is not None, f"{folder.path} holds no ranker"
    blocks = []
    for name in workers.in_turn(list(manifest.facts["blocks"])):
        block = committed(folder / "blocks" / name)
        assert block is not None, f"{folder.path}: block {name} is missing"
        blocks.append(read_classifiers(folder / "blocks" / name, block.files[WEIGHTS]))
    if not blocks:  # more workers than blocks
        return Classifiers(np.zeros(0, np.int32), sp.csc_matrix((manifest.facts["features"], 0), dtype=np.float32))
    labels_B = np.concatenate([block.labels_B for block in blocks])
    weights_FB = sp.hstack([block.weights_FB for block in blocks], format="csc")
    # With the kinds of indices that libpecos wants: it would copy others at every call.
    weights_FB.indices, weights_FB.indptr = weights_FB.indices.view(np.uint32), weights_FB.indptr.astype(np.uint64)
    return Classifiers(labels_B, weights_FB)
