"""W_L, the label classifiers: a table of L rows, of which a step reads and changes only those it shortlists.

Each worker owns a block of the rows. Rows stay: embeddings and label numbers go to the owners, logits come home, and
in backward the gradients take the same way. The table stands outside autograd. In float32 gradients are added to a
buffer that lives as long as the table, so no step makes one of the size of W_L. In bfloat16 there is no such buffer:
what backward finds waits as pairs of row and point, a number each, until the optimizer takes the gradients of the rows
that have one.

No B x K x D tensor is made either. Pairs are sorted by row, and a block of distinct rows is read once for all its
points: with rows as bags and points as what is in them, z_bk = <phi_b, w_k> is what embedding_bag computes as the
gradient of its per-sample weights, and the gradient of the rows is an embedding_bag.

Legend: B points of a worker, G points of all workers, K labels of a shortlist, L labels, D embedding size,
Q (point, label) pairs that this worker is asked for, U distinct rows among them, P positive labels (padded),
R labels drawn at random, of which this worker owns some.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from elias_ray.metrics import PAD
from elias_ray.shortlist import smallest
from elias_ray.workers import Route, Workers, alone

ROWS_AT_ONCE = {"cpu": 1024, "cuda": 2**16}  # so that they fit into a cache, or keep a GPU busy
PAIRS_AT_ONCE = {"cpu": 2**13, "cuda": 2**20}
PAIRS_SORTED = {"cpu": 2**17, "cuda": 2**24}  # at once


class LabelClassifiers:
    def __init__(
        self, weight: Tensor, bias: Tensor, num_labels: int, workers: Workers | None = None, trainable: bool = True
    ) -> None:
        """`weight` and `bias` are this worker's block of rows. A table that is not trainable holds no gradients."""
        self.workers, self.num_labels = workers or alone(), num_labels
        self.rows = self.workers.block(num_labels)
        assert len(weight) == len(bias) == len(self.rows), (weight.shape, bias.shape, self.rows)
        self.weight, self.bias = weight, bias
        buffered = trainable and weight.dtype == torch.float32
        self.weight_grad = torch.zeros_like(weight if buffered else weight[:0])
        self.bias_grad = torch.zeros_like(bias if trainable else bias[:0])
        self.waiting: list[_Waiting] = []  # of weights in bfloat16, a step each

    def logits(self, embedding_GD: Tensor, labels_BK: Tensor) -> Tensor:
        """z_bk = w_l . phi_b + bias_l for the labels of each of this worker's points: (B, K), 0 in padded places."""
        # Embeddings may be constants, so something else has to say that a gradient is wanted.
        wanted = torch.empty(0, requires_grad=torch.is_grad_enabled())
        longest = int((labels_BK != PAD).any(dim=0).sum())  # padding stands behind, and is not asked for
        logits_BK: Tensor = _Logits.apply(  # type: ignore[no-untyped-call]
            embedding_GD, labels_BK[:, :longest], self, wanted
        )
        return F.pad(logits_BK, (0, labels_BK.shape[1] - longest))

    def loss_against(self, drawn_R: Tensor, embedding_GD: Tensor, positives_GP: Tensor) -> Tensor:
        """Binary cross entropy of sigmoid(z), summed over all points and all labels, as estimated from those drawn.

        `drawn_R` ascends and is the same on every worker. Each looks at the labels that it owns, so nothing is sent;
        the mean over workers is the whole.
        """
        wanted = torch.empty(0, requires_grad=torch.is_grad_enabled())
        summed: Tensor = _LossAgainst.apply(  # type: ignore[no-untyped-call]
            embedding_GD, drawn_R, positives_GP, self, wanted
        )
        return summed

    def take_gradients(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Of weights in bfloat16, distinct rows and their mean gradient over the steps since this was last asked:
        (U,), (U, D)"""
        steps, self.waiting = self.waiting, []
        if not steps:
            return
        device = steps[0].rows_Q.device
        embedding_GD = torch.cat([step.embedding_GD for step in steps])
        points_before = [0, *itertools.accumulate(len(step.embedding_GD) for step in steps)]
        # Some of the rows at a time: their pairs are found at once, and sorted in a cache.
        parts = 1 + sum(len(step.rows_Q) for step in steps) // PAIRS_SORTED[device.type]
        firsts = torch.arange(parts + 1, device=device) * len(self.rows) // parts
        cuts_SP = [torch.searchsorted(step.rows_Q, firsts.int()).tolist() for step in steps]
        for part in range(parts):
            here = [slice(*cuts_P[part : part + 2]) for cuts_P in cuts_SP]
            rows_Q, grad_Q = (
                torch.cat([column[pairs] for column, pairs in zip(columns, here, strict=True)])
                for columns in ([step.rows_Q for step in steps], [step.grad_Q for step in steps])
            )
            points_Q = torch.cat(
                [
                    step.points_Q[pairs].long() + before
                    for step, pairs, before in zip(steps, here, points_before[:-1], strict=True)
                ]
            )
            if len(rows_Q):
                yield from _Pairs.of(rows_Q, points_Q).row_gradients(grad_Q / len(steps), embedding_GD)


class _Waiting(NamedTuple):
    """Pairs of row and point that backward has found in a step, sorted by row."""

    rows_Q: Tensor  # int32
    points_Q: Tensor  # int32
    grad_Q: Tensor
    embedding_GD: Tensor


@dataclass(frozen=True)
class _Pairs:
    """Pairs of row and point, sorted by row."""

    order_Q: Tensor  # where they were
    points_Q: Tensor
    rows_U: Tensor
    counts_U: Tensor

    @classmethod
    def of(cls, rows_Q: Tensor, points_Q: Tensor) -> "_Pairs":
        keys_Q = smallest((rows_Q.long() << 32) | torch.arange(len(rows_Q), device=rows_Q.device), len(rows_Q))
        order_Q = keys_Q & 0xFFFFFFFF
        rows_U, counts_U = (keys_Q >> 32).unique_consecutive(return_counts=True)
        return cls(order_Q, points_Q.index_select(0, order_Q), rows_U, counts_U)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Of distinct rows, and of the pairs that are theirs."""
        at_once, num_rows = ROWS_AT_ONCE[self.rows_U.device.type], len(self.rows_U)
        firsts = list(range(0, num_rows, at_once))
        starts = (self.counts_U.cumsum(0) - self.counts_U)[firsts].tolist()
        for first, (start, stop) in zip(firsts, itertools.pairwise([*starts, len(self.order_Q)]), strict=True):
            yield slice(first, min(first + at_once, num_rows)), slice(start, stop)

    def products(self, weight: Tensor, embedding_GD: Tensor) -> Tensor:
        """<w, phi> of every pair, in the order that they were in: (Q,)"""
        products_Q = torch.empty(len(self.order_Q), device=weight.device)
        for rows, pairs in self.blocks():
            counts_U = self.counts_U[rows]
            bags = torch.arange(len(counts_U), device=weight.device).repeat_interleave(counts_U)
            weight_UD = weight.index_select(0, self.rows_U[rows]).float()
            products_Q[pairs] = torch.ops.aten._embedding_bag_per_sample_weights_backward(
                weight_UD, embedding_GD, self.points_Q[pairs], counts_U.cumsum(0) - counts_U, bags, 0
            )
        return torch.empty_like(products_Q).index_copy_(0, self.order_Q, products_Q)

    def row_gradients(self, grad_Q: Tensor, embedding_GD: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Distinct rows, and the sum of the embeddings of their pairs, each times its gradient: (U,), (U, D)"""
        grad_Q = grad_Q.index_select(0, self.order_Q)
        for rows, pairs in self.blocks():
            counts_U = self.counts_U[rows]
            starts_U = counts_U.cumsum(0) - counts_U
            yield (
                self.rows_U[rows],
                F.embedding_bag(
                    self.points_Q[pairs], embedding_GD, starts_U, mode="sum", per_sample_weights=grad_Q[pairs]
                ),
            )


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding_GD: Tensor, labels_BK: Tensor, table: LabelClassifiers, _: Tensor) -> Tensor:
        present_BK = labels_BK != PAD
        wanted_BK = labels_BK.clamp(min=0)
        route = Route.to_owners(table.workers, wanted_BK, table.num_labels)
        rows_Q = route.send(wanted_BK.int()).long() - table.rows.start
        # Only how many labels each point asks of each owner travels, not the point of each pair.
        points_of = torch.arange(wanted_BK.numel(), device=labels_BK.device) // wanted_BK.shape[1]
        asked = route.owners * len(labels_BK) + points_of
        counts_G = table.workers.deal(asked.bincount(minlength=table.workers.size * len(labels_BK)).int()).long()
        points_Q = torch.arange(len(counts_G), device=labels_BK.device).repeat_interleave(counts_G)
        pairs = _Pairs.of(rows_Q, points_Q)
        logits_Q = pairs.products(table.weight, embedding_GD) + table.bias[rows_Q]
        ctx.save_for_backward(embedding_GD, rows_Q, counts_G, present_BK)
        ctx.table, ctx.route, ctx.pairs = table, route, pairs
        return route.bring_back(logits_Q).view(labels_BK.shape).masked_fill(~present_BK, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        embedding_GD, rows_Q, counts_G, present_BK = ctx.saved_tensors
        table: LabelClassifiers = ctx.table
        grad_Q = ctx.route.send(grads[0].masked_fill(~present_BK, 0))
        size = table.workers.size
        # To the embeddings: what this worker's rows have to say of every point.
        grad_GD = sums_of_rows(table.weight, rows_Q, counts_G, grad_Q) if ctx.needs_input_grad[0] else None
        # To the rows. Losses are means over a worker's points, so the mean over workers divides by their number.
        table.bias_grad.index_add_(0, rows_Q, grad_Q / size)
        if table.weight.dtype == torch.float32:
            for rows_U, grad_UD in ctx.pairs.row_gradients(grad_Q / size, embedding_GD):
                table.weight_grad.index_add_(0, rows_U, grad_UD)
        else:
            rows_Q, grad_Q = (values_Q.index_select(0, ctx.pairs.order_Q) for values_Q in (rows_Q, grad_Q / size))
            table.waiting.append(_Waiting(rows_Q.int(), ctx.pairs.points_Q.int(), grad_Q, embedding_GD.detach()))
        return grad_GD, None, None, None


def sums_of_rows(weight: Tensor, rows_Q: Tensor, counts_G: Tensor, factors_Q: Tensor) -> Tensor:
    """The sum of each point's rows, each times its factor, in float32: (G, D). A point's rows stand together."""
    if weight.dtype == torch.float32:
        starts_G = counts_G.cumsum(0) - counts_G
        return F.embedding_bag(rows_Q, weight, starts_G, mode="sum", per_sample_weights=factors_Q)
    sums_GD = torch.zeros(len(counts_G), weight.shape[1], device=weight.device)
    points_Q = torch.arange(len(counts_G), device=weight.device).repeat_interleave(counts_G)
    for rows, points, factors in zip(
        *(values.split(PAIRS_AT_ONCE[weight.device.type]) for values in (rows_Q, points_Q, factors_Q)), strict=True
    ):
        points_here, counts = points.unique_consecutive(return_counts=True)
        places = torch.arange(len(rows), device=weight.device)
        weight_QD = weight.index_select(0, rows).float()
        starts = counts.cumsum(0) - counts
        sums_GD.index_add_(
            0, points_here, F.embedding_bag(places, weight_QD, starts, mode="sum", per_sample_weights=factors)
        )
    return sums_GD


class _LossAgainst(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embedding_GD: Tensor, drawn_R: Tensor, positives_GP: Tensor, table: LabelClassifiers, _: Tensor
    ) -> Tensor:
        labels_R = drawn_R[(drawn_R >= table.rows.start) & (drawn_R < table.rows.stop)]
        rows_R = labels_R - table.rows.start
        weight_RD = table.weight.index_select(0, rows_R).float()
        logits_GR = torch.addmm(table.bias[rows_R], embedding_GD, weight_RD.T)
        points_Q, columns_Q = _where_drawn(positives_GP, labels_R)
        factor = table.workers.size * table.num_labels / len(drawn_R)
        summed = F.softplus(logits_GR).sum() - logits_GR[points_Q, columns_Q].sum()
        grad_GR = logits_GR.sigmoid_()
        grad_GR[points_Q, columns_Q] -= 1
        ctx.save_for_backward(embedding_GD, rows_R, weight_RD, grad_GR)
        ctx.table, ctx.factor = table, factor
        return summed * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        embedding_GD, rows_R, weight_RD, grad_GR = ctx.saved_tensors
        table: LabelClassifiers = ctx.table
        grad_GR = grad_GR * (grads[0] * ctx.factor)
        grad_GD = grad_GR @ weight_RD if ctx.needs_input_grad[0] else None
        table.bias_grad.index_add_(0, rows_R, grad_GR.sum(dim=0) / table.workers.size)
        table.weight_grad.index_add_(0, rows_R, grad_GR.T @ embedding_GD / table.workers.size)
        return grad_GD, None, None, None, None


def _where_drawn(positives_GP: Tensor, labels_R: Tensor) -> tuple[Tensor, Tensor]:
    """Points and columns of the positives that are among these labels, which ascend."""
    if len(labels_R) == 0:
        return positives_GP.new_empty(0), positives_GP.new_empty(0)
    columns_GP = torch.searchsorted(labels_R, positives_GP).clamp(max=len(labels_R) - 1)
    there_GP = labels_R[columns_GP] == positives_GP
    return there_GP.nonzero()[:, 0], columns_GP[there_GP]
