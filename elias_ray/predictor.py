"""A trained model in memory: new texts in, label names out. Needs neither Ray nor the data it was trained on.

    import elias_ray
    model = elias_ray.load("runs/apidocs")
    model.predict(["read a csv file"], top_k=3)

Several workers can share one, each with its rows of A and W_L and its blocks of the ranker; all of them then predict at
the same time, as many texts each.

Legend: N texts, D embedding size, F features of psi, K labels of a text, Q labels of all texts one after the other.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from pyarrow.fs import LocalFileSystem

from elias_ray.adjacency import prune
from elias_ray.artifacts import Folder, committed
from elias_ray.calibration import Calibration
from elias_ray.config import Config
from elias_ray.data import TERMS, Prepared
from elias_ray.encoder import Encoder, phi
from elias_ray.ensemble import average
from elias_ray.errors import UserError
from elias_ray.features import count_terms, psi, weigh
from elias_ray.final_scores import read_calibration
from elias_ray.memory import points_at_once
from elias_ray.metrics import PAD
from elias_ray.model import Elias, Search
from elias_ray.plan import ENCODER, Plan, open_run
from elias_ray.predictions import TOP_K, Predicted
from elias_ray.saved_model import read_model
from elias_ray.sparse_ranker import Classifiers, read_ranker
from elias_ray.tokenizer import load_tokenizer
from elias_ray.workers import Workers, alone

CPU = torch.device("cpu")
EMBEDDED_TOGETHER = 4096  # texts
LABELS_NAMED = 3  # of a cluster, to say what it is about


@dataclass(frozen=True)
class Path:
    """A way that the index led to a label: s_c * s_{c,l} = y^."""

    member: int
    cluster: int
    about: list[str]  # the labels that the cluster leads to most
    cluster_score: float
    edge_score: float
    score: float


@dataclass(frozen=True)
class Prediction:
    label: str
    score: float
    paths: list[Path] | None = None  # best first; only if asked for
    p: list[float | None] | None = None  # of each member, likewise; None: not among its best
    q: list[float | None] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class Scored(NamedTuple):
    """The best labels of some texts by their final scores, and p and q, (N, K) each."""

    best: Predicted
    p_NK: npt.NDArray[np.float32]
    q_NK: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Member:
    number: int
    model: Elias
    ranker: Classifiers  # this worker's
    place_of_label_L: npt.NDArray[np.int64]  # among them, -1 if it is another's
    candidates: int  # labels that it ranks
    calibration: Calibration

    @property
    def device(self) -> torch.device:
        return self.model.cluster_classifiers.weight.device

    def predict(
        self, embedding_ND: npt.NDArray[np.float32], psi_NF: sp.csr_matrix, frequency_L: npt.NDArray[np.int64]
    ) -> Scored:
        found = self.model.best_labels(torch.from_numpy(embedding_ND).to(self.device), self.candidates)
        labels_NK, p_NK = (values.cpu().numpy() for values in found)
        present_NK = labels_NK != PAD
        q_NK = self.rank(psi_NF, labels_NK)
        scores_NK = np.zeros_like(p_NK)
        scores_NK[present_NK] = self.calibration.scores(
            p_NK[present_NK], q_NK[present_NK], frequency_L[labels_NK[present_NK]]
        )
        return Scored(Predicted(labels_NK, scores_NK), p_NK, q_NK)

    def rank(self, psi_NF: sp.csr_matrix, labels_NK: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """q, (N, K): every worker answers what it can of everybody's pairs."""
        workers, answers = self.model.adjacency.workers, []
        for theirs_NF, labels in workers.gather_objects((psi_NF, labels_NK)):
            q_NK = np.zeros(labels.shape, np.float32)
            places_NK = np.where(labels == PAD, -1, self.place_of_label_L[labels])
            mine_NK = places_NK >= 0
            q_NK[mine_NK] = self.ranker.scores(
                theirs_NF, np.nonzero(mine_NK)[0], places_NK[mine_NK], threads=torch.get_num_threads()
            )
            answers.append(q_NK)
        return np.sum([theirs[workers.rank] for theirs in workers.gather_objects(answers)], axis=0, dtype=np.float32)


class Predictor:
    def __init__(self, config: Config, prepared: Prepared, members: Sequence[Member], encoder: str) -> None:
        self.config, self.prepared, self.members = config, prepared, members
        self.workers = members[0].model.adjacency.workers
        self.label_names, self.frequency_L = prepared.label_names, prepared.label_frequency_L
        self.tokenizer = load_tokenizer(encoder, config.encoder.max_length)
        terms = prepared.folder.read_table(TERMS, ["term", "idf"])
        self.idf = terms["idf"].to_numpy()
        self.column_of_term = {term: column for column, term in enumerate(terms["term"].to_pylist())}

    def predict(self, texts: Sequence[str], top_k: int = 5, explain: bool = False) -> list[list[Prediction]]:
        """Of each text its `top_k` labels, best first."""
        if isinstance(texts, str):
            raise UserError("predict takes a list of texts, not one text")
        check_top_k(top_k)
        return [
            found
            for part, embeddings in self.embedded(list(texts))
            for found in self._predict(part, embeddings, top_k, explain)
        ]

    def embedded(self, texts: list[str]) -> Iterator[tuple[list[str], list[npt.NDArray[np.float32]]]]:
        """As many of the texts as are searched at once, and their phi(x) by each member; until all are through.

        More are embedded together, since padding is wasted time and those of similar length go together then.
        """
        at_once = points_at_once(self.workers.size)
        for first in range(0, len(texts), EMBEDDED_TOGETHER):
            together = texts[first : first + EMBEDDED_TOGETHER]
            embeddings = self.embed(together)
            for start in range(0, len(together), at_once):
                part = slice(start, start + at_once)
                yield together[part], [embedding_ND[part] for embedding_ND in embeddings]

    def _predict(
        self, texts: list[str], embeddings: list[npt.NDArray[np.float32]], top_k: int, explain: bool
    ) -> list[list[Prediction]]:
        parts = self.score(texts, embeddings)
        united = average([part.best for part in parts], top_k)
        found = []
        for row in range(len(texts)):
            chosen = [
                (int(label), float(score))
                for label, score in zip(united.labels_NK[row], united.scores_NK[row], strict=True)
                if label != PAD
            ]
            if not explain:
                found.append([Prediction(self.label_names[label], score) for label, score in chosen])
                continue
            labels = [label for label, _ in chosen]
            paths = [
                self.paths(member, embedding_ND[row], labels)
                for member, embedding_ND in zip(self.members, embeddings, strict=True)
            ]
            found.append(
                [
                    Prediction(
                        self.label_names[label],
                        score,
                        sorted((path for ways in paths for path in ways[place]), key=lambda path: -path.score),
                        [_at(part.best.labels_NK[row], part.p_NK[row], label) for part in parts],
                        [_at(part.best.labels_NK[row], part.q_NK[row], label) for part in parts],
                    )
                    for place, (label, score) in enumerate(chosen)
                ]
            )
        return found

    def embed(self, texts: list[str]) -> list[npt.NDArray[np.float32]]:
        """phi(x) by the encoder of each member, (N, D) each."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]
        return [phi(member.model.encoder, tokens, member.device) for member in self.members]

    def score(self, texts: list[str], embeddings: list[npt.NDArray[np.float32]]) -> list[Scored]:
        """What each member makes of them."""
        tfidf_NF = self.tfidf(texts)
        return [
            member.predict(embedding_ND, psi(tfidf_NF, embedding_ND), self.frequency_L)
            for member, embedding_ND in zip(self.members, embeddings, strict=True)
        ]

    def tfidf(self, texts: list[str]) -> sp.csr_matrix:
        """As training texts were weighted; words that no training text has are nothing."""
        counts, terms = count_terms(texts)
        columns = np.array([self.column_of_term.get(term, -1) for term in terms], np.int32)
        idf = np.where(columns >= 0, self.idf[columns], np.float32(0)) if len(columns) else np.zeros(0, np.float32)
        return weigh(counts, columns, idf, self.prepared.num_terms, self.config.features.sublinear_tf)

    def paths(self, member: Member, embedding_D: npt.NDArray[np.float32], labels: list[int]) -> list[list[Path]]:
        """Of each label all ways to it through the clusters that this text explores. For a whole model alone."""
        assert self.workers.size == 1
        model, adjacency = member.model, member.model.adjacency
        clusters_1b, scores_1b = model.best_clusters(torch.from_numpy(embedding_D)[None].to(member.device))
        clusters_b = clusters_1b[0]
        edges_bR = adjacency.log_scores(clusters_b).exp()
        labels_bR = adjacency.labels[clusters_b]
        found: list[list[Path]] = [[] for _ in labels]
        for place, label in enumerate(labels):
            for beam, entry in (labels_bR == label).nonzero().tolist():
                cluster_score = float(scores_1b[0, beam])
                edge_score = float(edges_bR[beam, entry])
                heaviest = edges_bR[beam].topk(min(LABELS_NAMED, edges_bR.shape[1])).indices
                about = [self.label_names[i] for i in labels_bR[beam, heaviest].tolist() if i != PAD]
                score = cluster_score * edge_score
                found[place].append(Path(member.number, int(clusters_b[beam]), about, cluster_score, edge_score, score))
        return found


def check_top_k(top_k: int) -> None:
    if not 1 <= top_k <= TOP_K:
        raise UserError(f"top_k={top_k} is not within 1 and {TOP_K}")


def load(
    location: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    workers: Workers | None = None,
    device: torch.device = CPU,
) -> Predictor:
    """The model of a run that is through, or of an exported folder.

    `overrides` are of the form 'inference.key=value'. With `workers`, this worker's part of it. On the CPU unless
    another `device` is given.
    """
    plans = open_run(location, overrides)
    folder, config = plans[0].run, plans[0].config
    if config.features.given:
        raise UserError(
            f"{folder.path} was trained on features that came with its data (features.given=true), which new texts "
            "do not have; train with features.given=false to predict from text"
        )
    encoder = local_copy(folder / ENCODER) if folder.exists(ENCODER) else config.encoder.name
    members = [_read_member(plan, encoder, config, workers or alone(), device) for plan in plans]
    return Predictor(config, plans[0].prepared, members, encoder)


def local_copy(folder: Folder) -> str:
    """Where on this machine the files of a folder can be read by those who know local files alone."""
    if isinstance(folder.filesystem, LocalFileSystem):
        return folder.path
    copy = tempfile.mkdtemp()
    for name in folder.files():
        Folder.at(copy).write(name, folder.read(name))
    return copy


def _read_member(plan: Plan, encoder_name: str, config: Config, workers: Workers, device: torch.device) -> Member:
    manifest = committed(plan.model)
    assert manifest is not None
    num_labels = plan.prepared.num_labels
    encoder = Encoder.of(config.encoder, encoder_name, with_weights=False).eval()
    search = Search.of(config.search, int(manifest.facts["num_clusters"]), num_labels)
    model = read_model(plan.model, manifest, encoder, search, config.search.beta, workers, device, trainable=False)
    inference = config.inference
    if inference.least_edge or inference.edges_per_cluster:
        pruned = prune(model.adjacency, num_labels, inference.least_edge, inference.edges_per_cluster)
        model = Elias(model.encoder, model.cluster_classifiers, pruned, model.label_classifiers, search)
    ranker = read_ranker(plan.ranker, workers)
    place_of_label_L = np.full(num_labels, -1, np.int64)
    place_of_label_L[ranker.labels_B] = np.arange(len(ranker.labels_B))
    calibration = read_calibration(plan.calibration)
    return Member(plan.member, model, ranker, place_of_label_L, config.ranker.candidates, calibration)


def _at(labels_K: npt.NDArray[np.int32], values_K: npt.NDArray[np.float32], label: int) -> float | None:
    places = np.flatnonzero(labels_K == label)
    return float(values_K[places[0]]) if len(places) else None
