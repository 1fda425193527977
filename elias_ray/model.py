"""ELIAS: cluster scores, search through the adjacency, label scores. `search` is the algorithm.

Legend: B points of a worker, G points of all workers, D embedding size, E explored clusters (padded), K labels of the
shortlist (padded), P positive labels (padded), N paths, R labels drawn at random.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from elias_ray import config as configs
from elias_ray.adjacency import Adjacency
from elias_ray.clock import timed
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.encoder import Encoder
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.loss import classification_loss, shortlist_loss
from elias_ray.metrics import PAD
from elias_ray.shortlist import NO_LABEL, keyed
from elias_ray.workers import Workers


@dataclass(frozen=True)
class Search:
    """How wide to search."""

    alpha: float
    beam: int  # b
    shortlist: int  # K
    extra: int = 5  # parents of positives explored beyond the beam, in training
    path_power: float = 1.0  # of y^, in ranking

    @classmethod
    def of(cls, settings: configs.Search, num_clusters: int, num_labels: int) -> "Search":
        """As configured, but no wider than there is anything to search."""
        beam, shortlist = min(settings.beam, num_clusters), min(settings.shortlist, num_labels)
        return cls(settings.alpha, beam, shortlist, settings.extra_clusters, settings.path_power)


@dataclass(frozen=True)
class Elias:
    """One worker's part of the model: the encoder whole, of the tables its rows."""

    encoder: Encoder  # phi
    cluster_classifiers: ClusterClassifiers  # W_C
    adjacency: Adjacency  # A
    label_classifiers: LabelClassifiers  # W_L
    settings: Search

    def search(
        self,
        embedding_BD: Tensor,
        positives_BP: Tensor | None = None,
        parents_BP: Tensor | None = None,
        drawn_R: Tensor | None = None,
    ) -> "Found":
        parts = (self.cluster_classifiers, self.adjacency, self.label_classifiers, self.settings)
        return search(embedding_BD, *parts, positives_BP, parents_BP, drawn_R)

    def best_labels(self, embedding_BD: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The labels of highest p and their p, (B, size) each, without gradient."""
        with torch.no_grad():
            return self.search(embedding_BD).best_labels(size)

    def best_clusters(self, embedding_BD: Tensor) -> tuple[Tensor, Tensor]:
        """The clusters of highest s_c, those that a search explores, and their s_c, (B, b) each, without gradient."""
        classifiers, settings = self.cluster_classifiers, self.settings
        with torch.no_grad():
            embedding_GD = classifiers.workers.gather(embedding_BD)
            clusters_Bb, log_scores_Bb = classifiers.explore(embedding_GD, settings.alpha, settings.beam)
        return clusters_Bb, log_scores_Bb.exp()


@dataclass(frozen=True)
class Found:
    """What a search found of each point."""

    labels_BK: Tensor  # PAD where fewer labels are reachable
    logits_BK: Tensor  # z = w . phi(x) + bias
    log_shortlist_BK: Tensor  # log y^
    path_power: float = 1.0  # of y^, in ranking
    log_positives_BP: Tensor | None = None  # log y^ of the positives, over all explored paths
    positives_reached_BP: Tensor | None = None
    against_all: Tensor | None = None  # cross entropy of sigmoid(z) over all labels; see LabelClassifiers.loss_against

    @property
    def log_p_BK(self) -> Tensor:
        """log of p = sigmoid(z) * y^, by which labels are ranked; -inf in padded places.

        With a power of y^ below 1, the index counts less beside W_L.
        """
        log_p_BK = F.logsigmoid(self.logits_BK) + self.path_power * self.log_shortlist_BK
        return log_p_BK.masked_fill(self.labels_BK == PAD, -torch.inf)

    def best_labels(self, size: int) -> tuple[Tensor, Tensor]:
        """The labels of highest p and their p, (B, size) each; of equal ones the smaller label."""
        labels_BK, log_p_BK = self.labels_BK, self.log_p_BK
        # One integer orders by p and then by label.
        key_BK = keyed(-log_p_BK, labels_BK.masked_fill(labels_BK == PAD, NO_LABEL))
        order_BK = key_BK.topk(min(size, key_BK.shape[1]), dim=1, largest=False).indices
        return labels_BK.gather(1, order_BK).int(), log_p_BK.gather(1, order_BK).exp()


def search(
    embedding_BD: Tensor,
    cluster_classifiers: ClusterClassifiers,
    adjacency: Adjacency,
    label_classifiers: LabelClassifiers,
    settings: Search,
    positives_BP: Tensor | None = None,
    parents_BP: Tensor | None = None,
    drawn_R: Tensor | None = None,
) -> Found:
    """Training gives the positives of each point and their parents, PAD where a point has fewer; and, if W_L is to be
    trained against all labels too, the labels drawn at random for all points."""
    with timed("search"):
        embedding_GD = cluster_classifiers.workers.gather_with_gradient(embedding_BD)
        clusters_BE, log_explored_BE = cluster_classifiers.explore(
            embedding_GD, settings.alpha, settings.beam, parents_BP, settings.extra
        )
        wanted_BP = positives_BP if positives_BP is not None else clusters_BE[:, :0]
        positives_GP = label_classifiers.workers.gather(wanted_BP.int()).long()
        best = adjacency.best_paths(clusters_BE, log_explored_BE.detach(), settings.shortlist, positives_GP)

    def log_scores(paths_BN: Tensor) -> Tensor:
        """log y^ = log s_c + log s_{c,l} along these paths, with gradient; 0 where there is none."""
        missing_BN = paths_BN == PAD
        explored_BN = paths_BN.clamp(min=0) // adjacency.row_length
        clusters_BN = clusters_BE.gather(1, explored_BN).masked_fill(missing_BN, 0)
        places_BN = (paths_BN % adjacency.row_length).masked_fill(missing_BN, PAD)
        log_edges_BN = adjacency.log_scores_of(clusters_BN, places_BN, anchor=log_explored_BE)
        return (log_explored_BE.gather(1, explored_BN) + log_edges_BN).masked_fill(missing_BN, 0)

    with timed("score"):
        logits_BK = label_classifiers.logits(embedding_GD, best.labels_BK)
        if positives_BP is None:
            return Found(best.labels_BK, logits_BK, log_scores(best.paths_BK), settings.path_power)
        log_scores_BN = log_scores(torch.cat([best.paths_BK, best.paths_BP], dim=1))
        log_shortlist_BK, log_positives_BP = log_scores_BN.split(
            [best.paths_BK.shape[1], best.paths_BP.shape[1]], dim=1
        )
        against_all = None
        if drawn_R is not None:
            against_all = label_classifiers.loss_against(drawn_R, embedding_GD, positives_GP)
        return Found(
            best.labels_BK,
            logits_BK,
            log_shortlist_BK,
            settings.path_power,
            log_positives_BP,
            best.paths_BP != PAD,
            against_all,
        )


def loss(
    found: Found, positives_BP: Tensor, shortlist_weight: float, workers: Workers, all_labels_weight: float = 0.0
) -> Tensor:
    """L = L_c + lambda * L_s of this worker's points; the mean over workers is the loss of all points together.

    Where labels were drawn at random, a pair of point and label of all L weighs `all_labels_weight` of one of L_c.
    """
    assert found.log_positives_BP is not None
    assert found.positives_reached_BP is not None
    present_BK = found.labels_BK != PAD
    positive_BK = is_in(found.labels_BK, positives_BP) & present_BK
    classification = classification_loss(found.logits_BK, found.log_shortlist_BK, positive_BK, present_BK)
    # Workers reach different numbers of positives; each divides by their mean, so that all weigh the same.
    reached = workers.gather(found.positives_reached_BP.sum().view(1)).float().mean()
    search_loss = shortlist_loss(found.log_positives_BP, found.positives_reached_BP, reached)
    total = classification + shortlist_weight * search_loss
    if found.against_all is None:
        return total
    return total + all_labels_weight * found.against_all / (workers.size * found.logits_BK.numel())


def is_in(labels_BK: Tensor, positives_BP: Tensor) -> Tensor:
    """Whether each label is among the point's positives: (B, K)."""
    sorted_BP = positives_BP.masked_fill(positives_BP == PAD, NO_LABEL).sort(dim=1).values
    if sorted_BP.shape[1] == 0:
        return torch.zeros_like(labels_BK, dtype=torch.bool)
    places_BK = torch.searchsorted(sorted_BP, labels_BK.contiguous()).clamp(max=sorted_BP.shape[1] - 1)
    return sorted_BP.gather(1, places_BK) == labels_BK
