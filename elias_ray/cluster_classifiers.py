"""W_C, the cluster classifiers: which clusters a point explores, and how they score.

Each worker owns a block of the rows and scores the points of all workers against its own clusters. What goes home of
each point is its best b clusters there and the parents of its positives; between all of them travels one number a
point, the log of the sum of its exponentiated logits, by which the softmax is that over all clusters. So what is sent
does not grow with C. Like W_L and A, W_C is a table outside autograd whose gradient is added to a lasting buffer.

Legend: B points of a worker, G points of all workers, W workers, D embedding size, C clusters that this worker owns,
b beam, P positive labels (padded), M = W * b best clusters of all owners, E explored clusters (padded).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elias_ray.metrics import PAD
from elias_ray.shortlist import best_by, explore, some_points_at_once
from elias_ray.workers import Workers, alone


class ClusterClassifiers:
    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        num_clusters: int,
        workers: Workers | None = None,
        trainable: bool = True,
        coarse: bool = False,
    ) -> None:
        """`weight` and `bias` are this worker's block of rows. A table that is not trainable holds no gradients.

        `coarse`: in its products bfloat16 will do, see `coarse_products`.
        """
        self.workers, self.num_clusters, self.coarse = workers or alone(), num_clusters, coarse
        self.rows = self.workers.block(num_clusters)
        assert len(weight) == len(bias) == len(self.rows), (weight.shape, bias.shape, self.rows)
        self.weight, self.bias = weight, bias
        self.weight_grad, self.bias_grad = (
            torch.zeros_like(tensor if trainable else tensor[:0]) for tensor in (weight, bias)
        )

    def explore(
        self,
        embedding_GD: Tensor,
        alpha: float,
        beam: int,
        parents_BP: Tensor | None = None,
        extra: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """The clusters that this worker's points explore and their log s_c, with gradient: (B, E) each.

        PAD, and 0, where a point explores fewer.
        """
        if parents_BP is None:
            parents_BP = torch.empty(len(embedding_GD) // self.workers.size, 0, dtype=torch.long).to(self.weight.device)
        # Embeddings may be constants, so something else has to say that a gradient is wanted.
        wanted = torch.empty(0, requires_grad=torch.is_grad_enabled())
        log_softmax_BE, clusters_BE = _LogSoftmax.apply(  # type: ignore[no-untyped-call]
            embedding_GD, wanted, self, alpha, beam, parents_BP, extra
        )
        return clusters_BE, (log_softmax_BE + math.log(alpha)).clamp(max=0).masked_fill(clusters_BE == PAD, 0)

    def log_scores(self, embedding_GD: Tensor, alpha: float) -> Tensor:
        """log s_c = min(0, log alpha + log softmax_c(W_C phi)) of this worker's clusters: (G, C), without gradient."""
        logits_GC, log_sum_G1 = self.logits(embedding_GD.detach())
        return (logits_GC - log_sum_G1 + math.log(alpha)).clamp(max=0)

    def logits(self, embedding_GD: Tensor) -> tuple[Tensor, Tensor]:
        """Of this worker's clusters, (G, C); and the log of the sum of those of all clusters, exponentiated: (G, 1)."""
        with coarse_products(self.coarse):
            logits_GC = torch.addmm(self.bias, embedding_GD, self.weight.T)
        log_sum_G = torch.cat([part.logsumexp(dim=1) for (part,) in some_points_at_once(len(self.rows), logits_GC)])
        log_sums_WG = self.workers.gather(log_sum_G[None])
        return logits_GC, log_sums_WG.logsumexp(dim=0)[:, None]


@contextmanager
def coarse_products(wanted: bool) -> Iterator[None]:
    """On a CPU, of float32 matrices by oneDNN: where it has hardware for that (AMX) in bfloat16, summed in float32;
    else in float32, which takes half as long as by MKL on an AMD with AVX-512."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    if wanted:
        matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


class _LogSoftmax(torch.autograd.Function):
    """Of the explored clusters, which are chosen here."""

    @staticmethod
    def forward(
        ctx: Any,
        embedding_GD: Tensor,
        _: Tensor,
        table: ClusterClassifiers,
        alpha: float,
        beam: int,
        parents_BP: Tensor,
        extra: int,
    ) -> tuple[Tensor, Tensor]:
        workers, rows = table.workers, table.rows
        logits_GC, log_sum_G1 = table.logits(embedding_GD)
        # min(1, alpha * softmax) makes equal what it cuts, and of equal ones the smaller number is explored.
        best_Gb = best_by(logits_GC, log_sum_G1 - math.log(alpha), min(beam, len(rows)))
        missing = (0, beam - best_Gb.shape[1])  # where this worker owns fewer
        clusters_BM = workers.home(F.pad(best_Gb + rows.start, missing, value=PAD).int()).long().flatten(1)
        log_best_Gb = F.pad(logits_GC.gather(1, best_Gb) - log_sum_G1, missing, value=-torch.inf)
        log_best_BM = workers.home(log_best_Gb).flatten(1)
        parents_BP = parents_BP.sort(dim=1).values
        parents_GP = workers.gather(parents_BP.int()).long()
        places_GP = (parents_GP - rows.start).clamp(0, len(rows) - 1)
        not_mine_GP = (parents_GP < rows.start) | (parents_GP >= rows.stop)
        log_parents_GP = (logits_GC.gather(1, places_GP) - log_sum_G1).masked_fill(not_mine_GP, -torch.inf)
        log_parents_BP = workers.home(log_parents_GP).amax(dim=1)
        candidates_BN = torch.cat([clusters_BM, parents_BP], dim=1)
        log_softmax_BN = torch.cat([log_best_BM, log_parents_BP], dim=1)
        cost_BN = (-log_softmax_BN - math.log(alpha)).clamp(min=0)
        places_BE = explore(candidates_BN, cost_BN, clusters_BM.shape[1], beam, extra)
        nothing_BE = places_BE == PAD
        clusters_BE = candidates_BN.gather(1, places_BE.clamp(min=0)).masked_fill(nothing_BE, PAD)
        ctx.save_for_backward(embedding_GD, logits_GC, log_sum_G1, clusters_BE)
        ctx.table = table
        ctx.mark_non_differentiable(clusters_BE)
        return log_softmax_BN.gather(1, places_BE.clamp(min=0)).masked_fill(nothing_BE, 0), clusters_BE

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None, None, None, None]:
        embedding_GD, logits_GC, log_sum_G1, clusters_BE = ctx.saved_tensors
        table: ClusterClassifiers = ctx.table
        workers, rows = table.workers, table.rows
        grad_GE = workers.gather(grads[0].masked_fill(clusters_BE == PAD, 0))
        places_GE = workers.gather(clusters_BE.int()).long() - rows.start
        not_mine_GE = (places_GE < 0) | (places_GE >= len(rows))
        pulls = (places_GE.masked_fill(not_mine_GE, 0), grad_GE.masked_fill(not_mine_GE, 0))
        # Each explored cluster pulls at its own logit, and pushes those of all clusters by their softmax.
        columns = (logits_GC, log_sum_G1, -grad_GE.sum(dim=1, keepdim=True), *pulls)
        for logits_PC, log_sum_P1, push_P1, places_PE, pull_PE in some_points_at_once(len(rows), *columns):
            grad_PC = logits_PC.sub_(log_sum_P1).exp_().mul_(push_P1).scatter_add_(1, places_PE, pull_PE)
            # Losses are means over a worker's points, so the mean over workers divides by their number.
            table.bias_grad.add_(grad_PC.sum(dim=0), alpha=1 / workers.size)
        grad_GC = logits_GC
        with coarse_products(table.coarse):
            grad_GD = grad_GC @ table.weight if ctx.needs_input_grad[0] else None
            table.weight_grad.addmm_(grad_GC.T, embedding_GD, alpha=1 / workers.size)
        return grad_GD, None, None, None, None, None, None
