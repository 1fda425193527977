"""ELIAS, the model of the last stage, and ELIAS++, with the ranker and calibration behind it: as the run has trained
them, asked as a user would, from texts. Whole or an ensemble of them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from elias_ray.analysis import seconds_of_steps
from elias_ray.artifacts import Folder, committed
from elias_ray.ensemble import average
from elias_ray.export import export
from elias_ray.metrics import PAD
from elias_ray.peers import Case
from elias_ray.peers.columns import texts_of
from elias_ray.plan import Plan
from elias_ray.predictions import TOP_K, Predicted
from elias_ray.predictor import Predictor, load


@dataclass(frozen=True)
class Ours:
    case: Case
    predictor: Predictor
    with_ranker: bool
    facts: dict[str, Any]  # of its training, from the run's own records

    def predict(self) -> sp.csr_matrix:
        texts = texts_of(self.case.member.prepared, "test")
        parts = [self.best(part, embeddings) for part, embeddings in self.predictor.embedded(texts)]
        present = [part.labels_NK != PAD for part in parts]
        counts_N = np.concatenate([of_part.sum(axis=1) for of_part in present])
        labels_Q, scores_Q = (
            np.concatenate([values[of_part] for values, of_part in zip(column, present, strict=True)])
            for column in zip(*parts, strict=True)
        )
        indptr = np.concatenate([[0], np.cumsum(counts_N)])
        return sp.csr_matrix((scores_Q, labels_Q, indptr), shape=(len(counts_N), len(self.predictor.label_names)))

    def best(self, texts: list[str], embeddings: list[npt.NDArray[np.float32]]) -> Predicted:
        if self.with_ranker:
            return average([part.best for part in self.predictor.score(texts, embeddings)], TOP_K)
        found = []
        for member, embedding_ND in zip(self.predictor.members, embeddings, strict=True):
            labels_NK, p_NK = member.model.best_labels(torch.from_numpy(embedding_ND), TOP_K)
            found.append(Predicted(labels_NK.numpy(), p_NK.numpy()))
        return average(found, TOP_K)

    def save(self, folder: Path) -> None:
        if self.with_ranker:
            export(self.case.member.run.location, Folder.at(folder / "model"))
            return
        model = self.case.member.model
        for name in model.files():
            Folder.at(folder).write(name, model.read(name))


def train(case: Case, name: str) -> Ours:
    """Nothing is left to do; time and memory are what the run noted."""
    torch.set_num_threads(case.threads)
    return Ours(case, load(case.member.run.location), name == "elias++", costs(case.member, name == "elias++"))


def costs(member: Plan, with_ranker: bool) -> dict[str, Any]:
    """Of all that the system took to train, in seconds; and of the workers of its hungriest step together, in bytes."""
    left_out = {"metrics"} if with_ranker else {"metrics", "ranker", "calibration"}
    seconds = sum(step["seconds"] for step in seconds_of_steps(member) if step["step"] not in left_out)
    models = [member.stage("stage1").model, member.model, *([member.ranker / "model"] if with_ranker else [])]
    found = [committed(model) for model in models]
    return {
        "training_seconds": seconds,
        "peak_memory": max(sum(manifest.facts.get("peak_memory", [])) for manifest in found if manifest is not None),
    }
