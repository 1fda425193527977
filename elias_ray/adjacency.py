"""A, the adjacency: for each cluster the labels it has edges to and what those edges weigh, in two tensors.

Like W_L it is a table outside autograd whose gradient is added to a lasting buffer, for the rows a batch explores only.

Legend: B points, C clusters, E explored clusters of a point (padded), R entries of a row (kappa), K chosen edges,
L labels, U distinct rows in a batch.
"""

import math
from typing import Any

import torch
from torch import Tensor

from elias_ray.shortlist import PAD


class Adjacency:
    def __init__(self, labels_CR: Tensor, weights_CR: Tensor, beta: float | None) -> None:
        """`labels_CR` is PAD where a row is shorter than R. Without `beta` (stage 1) every edge scores 1."""
        self.labels_CR, self.weights_CR, self.beta = labels_CR, weights_CR, beta
        self.weights_grad_CR = torch.zeros_like(weights_CR) if beta is not None else None

    @classmethod
    def from_clusters(cls, cluster_of_L: Tensor, num_clusters: int) -> "Adjacency":
        """Stage 1: the clustering itself, one edge to each label, each of score 1."""
        sizes_C = cluster_of_L.bincount(minlength=num_clusters)
        order_L = cluster_of_L.argsort(stable=True)
        place_L = torch.arange(len(order_L)) - (sizes_C.cumsum(0) - sizes_C)[cluster_of_L[order_L]]
        labels_CR = torch.full((num_clusters, int(sizes_C.max())), PAD, dtype=torch.int32)
        labels_CR[cluster_of_L[order_L], place_L] = order_L.int()
        return cls(labels_CR, torch.zeros(labels_CR.shape), beta=None)

    def log_scores(self, clusters_U: Tensor) -> Tensor:
        """log s_{c,l} = min(0, log beta + log softmax of the row), of whole rows: (U, R), -inf in padded places."""
        padded_UR = self.labels_CR[clusters_U] == PAD
        if self.beta is None:
            return torch.zeros(padded_UR.shape).masked_fill(padded_UR, -torch.inf)
        weights_UR = self.weights_CR[clusters_U].masked_fill(padded_UR, -torch.inf)
        return (weights_UR.log_softmax(dim=1) + math.log(self.beta)).clamp(max=0)

    def paths(self, clusters_BE: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and log edge scores of every path, without gradient: (B, E * R) both."""
        rows_U, row_of_BE = clusters_BE.clamp(min=0).unique(return_inverse=True)
        missing_BE1 = (clusters_BE == PAD)[:, :, None]
        labels_BER = self.labels_CR[rows_U][row_of_BE].masked_fill(missing_BE1, PAD)
        return labels_BER.flatten(1), self.log_scores(rows_U)[row_of_BE].flatten(1)

    def log_scores_of(self, clusters_BK: Tensor, places_BK: Tensor, anchor: Tensor) -> Tensor:
        """log s_{c,l} of single edges, with gradient: (B, K). `anchor` is any tensor that takes part in autograd."""
        log_scores_BK: Tensor = _EdgeScores.apply(anchor, clusters_BK, places_BK, self)  # type: ignore[no-untyped-call]
        return log_scores_BK

    def parents(self, num_labels: int) -> Tensor:
        """argmax_c a_{c,l}, the cluster that each label belongs to most: (L,), PAD for a label without an edge.

        Of equal edges the smaller cluster. Compared by edge score, so that rows of different spread are comparable.
        """
        edges = (self.labels_CR != PAD).flatten()
        labels = self.labels_CR.flatten()[edges].long()
        scores = self.log_scores(torch.arange(len(self.labels_CR))).flatten()[edges]
        clusters = torch.arange(len(self.labels_CR)).repeat_interleave(self.labels_CR.shape[1])[edges]
        best_L = torch.full((num_labels,), -torch.inf).scatter_reduce(0, labels, scores, "amax")
        parents_L = torch.full((num_labels,), len(self.labels_CR))
        is_best = scores == best_L[labels]
        parents_L.scatter_reduce_(0, labels[is_best], clusters[is_best], "amin")
        return parents_L.masked_fill(parents_L == len(self.labels_CR), PAD)


class _EdgeScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, clusters_BK: Tensor, places_BK: Tensor, table: Adjacency) -> Tensor:
        rows_U, row_of_BK = clusters_BK.clamp(min=0).unique(return_inverse=True)
        log_scores_UR = table.log_scores(rows_U)
        log_scores_BK = log_scores_UR[row_of_BK, places_BK.clamp(min=0)].masked_fill(places_BK == PAD, 0)
        ctx.save_for_backward(rows_U, row_of_BK, places_BK)
        ctx.table = table
        return log_scores_BK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
        rows_U, row_of_BK, places_BK = ctx.saved_tensors
        table: Adjacency = ctx.table
        if table.weights_grad_CR is None or table.beta is None:  # stage 1: A is fixed
            return None, None, None, None
        weights_UR = table.weights_CR[rows_U].masked_fill(table.labels_CR[rows_U] == PAD, -torch.inf)
        log_softmax_UR = weights_UR.log_softmax(dim=1)
        flat = row_of_BK.flatten() * weights_UR.shape[1] + places_BK.flatten().clamp(min=0)
        grad = grads[0].flatten().masked_fill(places_BK.flatten() == PAD, 0)
        grad_UR = torch.zeros_like(weights_UR)
        grad_UR.view(-1).index_add_(0, flat, grad)
        grad_UR.masked_fill_(
            log_softmax_UR + math.log(table.beta) > 0, 0
        )  # min(1, .) passes nothing where it saturates
        grad_UR -= log_softmax_UR.exp() * grad_UR.sum(dim=1, keepdim=True)
        table.weights_grad_CR.index_add_(0, rows_U, grad_UR)
        return None, None, None, None
