"""XR-Linear of libpecos: a tree of labels, and linear classifiers on tf-idf at each of its nodes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel

from elias_ray.peers import Case
from elias_ray.predictions import TOP_K

BEAM = 100  # wide enough that a wider one changes nothing; libpecos' own 10 leaves too few labels for R@100
POINTS_AT_ONCE = 4096  # asked about; libpecos keeps all labels that their beams lead to, 0.3 MB a point


@dataclass(frozen=True)
class XRLinear:
    case: Case
    model: XLinearModel

    def predict(self) -> sp.csr_matrix:
        psi_NF = self.case.member.prepared.tfidf("test").astype(np.float32)
        return self.model.predict(
            psi_NF, beam_size=BEAM, only_topk=TOP_K, threads=self.case.threads, max_pred_chunk=POINTS_AT_ONCE
        ).tocsr()

    def save(self, folder: Path) -> None:
        self.model.save(str(folder))


def train(case: Case) -> XRLinear:
    prepared = case.member.prepared
    psi_NF, labels_NL = prepared.tfidf("train").astype(np.float32), prepared.labels("train").astype(np.float32)
    chain = Indexer.gen(LabelEmbeddingFactory.create(labels_NL, psi_NF, method="pifa"))
    return XRLinear(case, XLinearModel.train(psi_NF, labels_NL, C=chain, threads=case.threads))
