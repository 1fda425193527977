"""A, the adjacency: for each cluster the labels it has edges to and what those edges weigh, in two tensors.

Each worker owns a block of the rows and forms the paths through its own clusters for the points of all workers; what
goes home of each point is its best K labels there and its positives. That is exact: a label among the best K of all is
among the best K of the owner of its best path. Like W_L, A is a table outside autograd whose gradient is added to a
lasting buffer, for explored rows only.

Legend: B points of a worker, G points of all workers, W workers, C clusters, E explored clusters of a point (padded),
O of them that a worker owns (padded), R entries of a row (kappa), M = O * R paths, K labels of a shortlist,
P positives (padded), L labels, U distinct rows.
A path is numbered e * R + r by the place e of its cluster among the explored and the place r of its edge in the row.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from elias_ray.errors import UserError
from elias_ray.metrics import PAD
from elias_ray.shortlist import NO_LABEL, places_where, shortlist, some_points_at_once
from elias_ray.sparse_products import heaviest, heaviest_product
from elias_ray.workers import Route, Workers, alone

NO_PATH = 2**31 - 1  # behind every path
LEAST = torch.finfo(torch.float32).min
ROWS_AT_ONCE = 1024  # of A, where all are looked at


class BestPaths(NamedTuple):
    """Without gradient; PAD where there is none."""

    labels_BK: Tensor
    paths_BK: Tensor
    paths_BP: Tensor  # to the positives


class Adjacency:
    def __init__(
        self,
        labels: Tensor,
        weights: Tensor,
        beta: float | None,
        num_clusters: int,
        workers: Workers | None = None,
        trainable: bool = True,
    ) -> None:
        """`labels` and `weights` are this worker's rows, labels ascending, PAD behind them where a row is shorter.

        Without `beta` (stage 1) every edge scores 1 and nothing is learned. What is not trainable has no gradient.
        Padded places weigh -inf from here on, so that they are in no softmax.
        """
        self.workers, self.num_clusters, self.beta = workers or alone(), num_clusters, beta
        self.rows = self.workers.block(num_clusters)
        assert len(labels) == len(weights) == len(self.rows), (labels.shape, weights.shape, self.rows)
        keys_CR = labels.masked_fill(labels == PAD, NO_LABEL)
        assert (keys_CR[:, 1:] >= keys_CR[:, :-1]).all(), "labels of a row must ascend"
        self.labels, self.weights = labels, weights.masked_fill_(labels == PAD, -torch.inf)
        self.weights_grad = torch.zeros_like(weights) if beta is not None and trainable else None

    @property
    def row_length(self) -> int:
        return self.labels.shape[1]

    def best_paths(self, clusters_BE: Tensor, log_scores_BE: Tensor, size: int, positives_GP: Tensor) -> BestPaths:
        """The best `size` labels over the explored clusters, and the best path to each and to each positive.

        Positives are given of all workers' points, explored clusters of this worker's.
        """
        clusters_GE, log_scores_GE = self.workers.gather(clusters_BE.int()).long(), self.workers.gather(log_scores_BE)
        mine_GE = (clusters_GE >= self.rows.start) & (clusters_GE < self.rows.stop)
        places_GO = places_where(mine_GE)  # of the explored ones that this worker owns
        missing_GO = places_GO == PAD
        rows_GO = (clusters_GE.gather(1, places_GO.clamp(min=0)) - self.rows.start).masked_fill(missing_GO, 0)
        rows_U, row_of_GO = _distinct(rows_GO, len(self.rows))
        log_clusters_GO = log_scores_GE.gather(1, places_GO.clamp(min=0)).masked_fill(missing_GO, -torch.inf)
        log_edges_UR = self.log_scores(rows_U)
        columns = (rows_GO, row_of_GO, places_GO, log_clusters_GO, positives_GP)
        parts = [
            self._own_paths(log_edges_UR, size, *part)
            for part in some_points_at_once(rows_GO.shape[1] * self.row_length, *columns)
        ]
        labels_GK, log_labels_GK, paths_GK, log_positives_GP, paths_GP = (
            torch.cat(values) for values in zip(*parts, strict=True)
        )
        if self.workers.size == 1:
            return BestPaths(labels_GK, paths_GK, paths_GP)
        log_labels_BWK = self.workers.home(log_labels_GK)
        labels_BWK, paths_BWK = self.workers.home(labels_GK.int()).long(), self.workers.home(paths_GK.int()).long()
        candidates = (labels_BWK.flatten(1), log_labels_BWK.flatten(1))
        merged = [
            shortlist(labels, log_scores, size)
            for labels, log_scores in some_points_at_once(candidates[0].shape[1], *candidates)
        ]
        labels_BK, places_BK = (torch.cat(values) for values in zip(*merged, strict=True))
        paths_BK = paths_BWK.flatten(1).gather(1, places_BK.clamp(min=0)).masked_fill(places_BK == PAD, PAD)
        log_positives_BWP = self.workers.home(log_positives_GP)
        paths_BWP = self.workers.home(paths_GP.int()).long()
        # Of equal paths the first, as in a whole adjacency.
        behind_BWP = paths_BWP.masked_fill(log_positives_BWP < log_positives_BWP.amax(dim=1, keepdim=True), NO_PATH)
        paths_BP = behind_BWP.masked_fill(behind_BWP == PAD, NO_PATH).amin(dim=1)
        return BestPaths(labels_BK, paths_BK, paths_BP.masked_fill(paths_BP == NO_PATH, PAD))

    def log_scores(self, rows_U: Tensor) -> Tensor:
        """log s_{c,l} = min(0, log beta + log softmax of the row), of whole rows of this worker's: (U, R)."""
        weights_UR = self.weights.index_select(0, rows_U)
        if self.beta is None:
            return torch.zeros_like(weights_UR).masked_fill_(weights_UR == -torch.inf, -torch.inf)
        return weights_UR.sub_(self._log_sums(weights_UR) - math.log(self.beta)).clamp_(max=0)

    def log_scores_of(self, clusters_BN: Tensor, places_BN: Tensor, anchor: Tensor) -> Tensor:
        """log s_{c,l} of single edges, with gradient: (B, N), 0 where the place is PAD.

        `anchor` is any tensor that takes part in autograd.
        """
        if self.beta is None:
            return torch.zeros(places_BN.shape, device=places_BN.device)
        log_scores_BN: Tensor = _EdgeScores.apply(anchor, clusters_BN, places_BN, self)  # type: ignore[no-untyped-call]
        return log_scores_BN

    def parents(self, num_labels: int) -> Tensor:
        """argmax_c a_{c,l}, the cluster that each label belongs to most: (L,), PAD for a label without an edge.

        Of equal edges the smaller cluster. Compared by edge score, so that rows of different spread are comparable.
        """
        best_L = torch.full((num_labels,), -torch.inf, device=self.labels.device)
        for _, labels, scores in self._edges():
            best_L.scatter_reduce_(0, labels, scores, "amax")
        best_L = self.workers.gather(best_L).view(self.workers.size, -1).amax(dim=0)
        parents_L = torch.full((num_labels,), self.num_clusters, device=self.labels.device)
        for clusters, labels, scores in self._edges():
            is_best = scores == best_L[labels]
            parents_L.scatter_reduce_(0, labels[is_best], clusters[is_best], "amin")
        parents_L = self.workers.gather(parents_L).view(self.workers.size, -1).amin(dim=0)
        return parents_L.masked_fill(parents_L == self.num_clusters, PAD)

    def _edges(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Cluster, label and score of this worker's edges, some rows at a time."""
        for rows_U in torch.arange(len(self.rows), device=self.labels.device).split(ROWS_AT_ONCE):
            edges_UR = self.labels[rows_U] != PAD
            clusters_UR = (rows_U + self.rows.start)[:, None].expand(edges_UR.shape)
            yield clusters_UR[edges_UR], self.labels[rows_U][edges_UR].long(), self.log_scores(rows_U)[edges_UR]

    def _own_paths(
        self,
        log_edges_UR: Tensor,
        size: int,
        rows_GO: Tensor,
        row_of_GO: Tensor,
        places_GO: Tensor,
        log_clusters_GO: Tensor,
        positives_GP: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of some points, over the clusters that this worker owns: the best labels, their log scores and paths, (G, K)
        each; the log scores and paths of the positives, (G, P) each. Paths are numbered as those through all explored
        clusters."""
        # Whole rows, for which index_select is several times as fast as an index in brackets.
        shape = (*rows_GO.shape, self.row_length)
        labels_GOR = self.labels.index_select(0, rows_GO.flatten()).view(shape)
        log_scores_GOR = log_edges_UR.index_select(0, row_of_GO.flatten()).view(shape).add_(log_clusters_GO[:, :, None])
        labels_GK, paths_GK = shortlist(labels_GOR.flatten(1), log_scores_GOR.flatten(1), size)
        paths_GP = self._paths_to(positives_GP, labels_GOR, log_scores_GOR)
        log_labels_GK, log_positives_GP = (
            _scores_at(log_scores_GOR.flatten(1), paths) for paths in (paths_GK, paths_GP)
        )
        paths_GK, paths_GP = (self._among_all(paths, places_GO) for paths in (paths_GK, paths_GP))
        return labels_GK, log_labels_GK, paths_GK, log_positives_GP, paths_GP

    def _among_all(self, paths_GN: Tensor, places_GO: Tensor) -> Tensor:
        """Paths through a worker's own clusters, numbered as those through all explored ones."""
        missing_GN = paths_GN == PAD
        places_GN = places_GO.gather(1, paths_GN.clamp(min=0) // self.row_length)
        return (places_GN * self.row_length + paths_GN % self.row_length).masked_fill(missing_GN, PAD)

    def _paths_to(self, positives_GP: Tensor, labels_GOR: Tensor, log_scores_GOR: Tensor) -> Tensor:
        """The best path of each point to each of its positives, of equal ones the first: (G, P), PAD without any."""
        labels_GOR = labels_GOR.masked_fill(labels_GOR == PAD, NO_LABEL)  # so that they ascend
        wanted_GOP = positives_GP[:, None, :].expand(-1, labels_GOR.shape[1], -1).int().contiguous()
        edges_GOP = torch.searchsorted(labels_GOR, wanted_GOP).clamp_(max=self.row_length - 1)
        scores_GOP = log_scores_GOR.gather(2, edges_GOP).masked_fill(
            labels_GOR.gather(2, edges_GOP) != wanted_GOP, -torch.inf
        )
        best_GP, place_GP = scores_GOP.max(dim=1)
        paths_GP = place_GP * self.row_length + edges_GOP.gather(1, place_GP[:, None, :])[:, 0]
        return paths_GP.masked_fill(best_GP == -torch.inf, PAD)

    def _log_sums(self, weights_UR: Tensor) -> Tensor:
        """The log of what softmax divides by in these rows: (U, 1). A row may be all padding."""
        return weights_UR.logsumexp(dim=1, keepdim=True).clamp_(min=LEAST)


class PrunedAdjacency(Adjacency):
    """For prediction alone: some of the edges, with the scores that they have among all."""

    def __init__(self, labels: Tensor, log_scores: Tensor, num_clusters: int, workers: Workers) -> None:
        super().__init__(labels, log_scores, 1.0, num_clusters, workers, trainable=False)

    def _log_sums(self, weights_UR: Tensor) -> Tensor:
        return weights_UR.new_zeros(len(weights_UR), 1)


def prune(adjacency: Adjacency, num_labels: int, least_score: float, edges_per_row: int | None) -> PrunedAdjacency:
    """Without edges that score less, and beyond the best so many of a row; a label's best edge always stays."""
    every_row = torch.arange(len(adjacency.rows), device=adjacency.labels.device)
    log_scores_CR = adjacency.log_scores(every_row)
    keep_CR = log_scores_CR >= math.log(max(least_score, 1e-30))
    if edges_per_row is not None and edges_per_row < adjacency.row_length:
        order_CR = log_scores_CR.argsort(dim=1, descending=True, stable=True)
        keep_CR &= torch.zeros_like(keep_CR).scatter_(1, order_CR[:, :edges_per_row], True)
    parents_L = adjacency.parents(num_labels)
    keep_CR |= parents_L[adjacency.labels.long().clamp(min=0)] == (every_row + adjacency.rows.start)[:, None]
    keep_CR &= adjacency.labels != PAD
    mine = torch.cat([keep_CR.sum(dim=1), every_row.new_zeros(1)]).amax().view(1)  # a worker may have no row
    widest = adjacency.workers.gather(mine).max()  # a path counts by the width of a row, so all have one
    kept_first_CR = (~keep_CR).int().argsort(dim=1, stable=True)[:, : max(1, int(widest))]
    dropped_CR = ~keep_CR.gather(1, kept_first_CR)
    return PrunedAdjacency(
        adjacency.labels.gather(1, kept_first_CR).masked_fill(dropped_CR, PAD),
        log_scores_CR.gather(1, kept_first_CR).masked_fill(dropped_CR, -torch.inf),
        adjacency.num_clusters,
        adjacency.workers,
    )


def clusters_as_rows(cluster_of_L: Tensor, num_clusters: int) -> Tensor:
    """Stage 1: the labels of each cluster, ascending: (C, R), PAD behind them."""
    sizes_C = cluster_of_L.bincount(minlength=num_clusters)
    order_L = cluster_of_L.argsort(stable=True)
    place_L = torch.arange(len(order_L)) - (sizes_C.cumsum(0) - sizes_C)[cluster_of_L[order_L]]
    labels_CR = torch.full((num_clusters, int(sizes_C.max())), PAD, dtype=torch.int32)
    labels_CR[cluster_of_L[order_L], place_L] = order_L.int()
    return labels_CR


def estimate_rows(
    scores_NC: sp.csr_matrix, labels_NL: sp.csr_matrix, cluster_of_L: npt.NDArray[np.int32], labels_per_row: int
) -> Tensor:
    """Stage 2: the labels of the heaviest entries of each row of A' = M^T Y, ascending: (C, R), PAD behind them.

    M holds the scores of each training point's best clusters. A label that no row would keep stays in its cluster's
    row, in the place of the lightest there: else no path would ever lead to it.
    """
    num_clusters, num_labels = scores_NC.shape[1], labels_NL.shape[1]
    sizes_C = np.bincount(cluster_of_L, minlength=num_clusters)
    if sizes_C.max() > labels_per_row:
        raise UserError(
            f"search.labels_per_row={labels_per_row} is less than the largest cluster, {sizes_C.max()} labels; use more"
        )
    estimate_CL = heaviest_product(scores_NC.T.tocsr(), labels_NL, labels_per_row)
    heavier = np.float32(estimate_CL.data.max(initial=0) + 1)
    must_stay_L = np.zeros(num_labels, np.bool_)
    while True:
        stay = np.flatnonzero(must_stay_L)
        own_CL = sp.csr_matrix((np.full(len(stay), heavier), (cluster_of_L[stay], stay)), shape=estimate_CL.shape)
        kept_CL = heaviest(sp.csr_matrix(estimate_CL + own_CL), labels_per_row)
        lost_L = np.bincount(kept_CL.indices, minlength=num_labels) == 0
        if not lost_L.any():
            break
        must_stay_L |= lost_L  # making room for one may lose another, so look again; what stays once, stays
    labels_CR = np.full((num_clusters, int(np.diff(kept_CL.indptr).max())), PAD, np.int32)
    row_of = np.repeat(np.arange(num_clusters), np.diff(kept_CL.indptr))
    kept_CL.sort_indices()
    place_of = np.arange(kept_CL.nnz) - kept_CL.indptr[row_of]
    labels_CR[row_of, place_of] = kept_CL.indices
    return torch.from_numpy(labels_CR)


def _scores_at(log_scores_GM: Tensor, paths_GN: Tensor) -> Tensor:
    return log_scores_GM.gather(1, paths_GN.clamp(min=0)).masked_fill(paths_GN == PAD, -torch.inf)


def _distinct(rows: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """The distinct rows, ascending, and the place of each row among them."""
    there = torch.zeros(num_rows, dtype=torch.bool, device=rows.device).index_fill_(0, rows.flatten(), True)
    place_of = there.cumsum(0) - 1
    return there.nonzero()[:, 0], place_of.index_select(0, rows.flatten()).view(rows.shape)


class _EdgeScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, clusters_BN: Tensor, places_BN: Tensor, table: Adjacency) -> Tensor:
        assert table.beta is not None
        missing_BN = places_BN == PAD
        clusters_BN = clusters_BN.masked_fill(missing_BN, 0)
        route = Route.to_owners(table.workers, clusters_BN, table.num_clusters)
        edges_Q = route.send(clusters_BN * table.row_length + places_BN.clamp(min=0))
        edges_Q -= table.rows.start * table.row_length
        rows_U, row_of_Q = _distinct(edges_Q // table.row_length, len(table.rows))
        log_sums_U1 = table._log_sums(table.weights.index_select(0, rows_U))
        log_softmax_Q = table.weights.view(-1).index_select(0, edges_Q) - log_sums_U1[:, 0].index_select(0, row_of_Q)
        log_scores_Q = log_softmax_Q + math.log(table.beta)
        ctx.save_for_backward(edges_Q, rows_U, row_of_Q, log_sums_U1, log_scores_Q > 0, missing_BN)
        ctx.table, ctx.route = table, route
        return route.bring_back(log_scores_Q.clamp_(max=0)).view(places_BN.shape).masked_fill(missing_BN, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
        edges_Q, rows_U, row_of_Q, log_sums_U1, saturated_Q, missing_BN = ctx.saved_tensors
        table: Adjacency = ctx.table
        assert table.weights_grad is not None
        grad_Q = ctx.route.send(grads[0].masked_fill(missing_BN, 0)) / table.workers.size
        grad_Q.masked_fill_(saturated_Q, 0)  # where min(1, .) passes nothing on
        # Each edge pulls at its own weight, and pushes those of its row by their softmax.
        table.weights_grad.view(-1).index_add_(0, edges_Q, grad_Q)
        sums_U1 = torch.zeros_like(log_sums_U1).index_add_(0, row_of_Q, grad_Q[:, None])
        softmax_UR = table.weights.index_select(0, rows_U).sub_(log_sums_U1).exp_()
        table.weights_grad.index_add_(0, rows_U, softmax_UR.mul_(sums_U1), alpha=-1)
        return None, None, None, None
