"""W_L, the label classifiers: a table of L rows, of which a step reads and changes only those it shortlists.

Each worker owns a block of the rows. Rows stay: embeddings and label numbers go to the owners, logits come home, and
in backward the gradients take the same way. The table stands outside autograd: its gradient is added, row by row, to a
buffer that lives as long as the table, so no step makes a gradient of the size of W_L. No B x K x D tensor is made
either: z_bk = <phi_b, w_k> is what embedding_bag computes as the gradient of its per-sample weights, and both products
of backward are embedding_bags.

Legend: B points of a worker, G points of all workers, K labels of a shortlist, L labels, D embedding size,
Q (point, label) pairs that this worker is asked for, U distinct rows among them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elias_ray.metrics import PAD
from elias_ray.workers import Route, Workers, alone


class LabelClassifiers:
    def __init__(
        self, weight: Tensor, bias: Tensor, num_labels: int, workers: Workers | None = None, trainable: bool = True
    ) -> None:
        """`weight` and `bias` are this worker's block of rows. A table that is not trainable holds no gradients."""
        self.workers, self.num_labels = workers or alone(), num_labels
        self.rows = self.workers.block(num_labels)
        assert len(weight) == len(bias) == len(self.rows), (weight.shape, bias.shape, self.rows)
        self.weight, self.bias = weight, bias
        self.weight_grad, self.bias_grad = (torch.zeros_like(v if trainable else v[:0]) for v in (weight, bias))

    def logits(self, embedding_BD: Tensor, labels_BK: Tensor) -> Tensor:
        """z_bk = w_l . phi_b + bias_l for the labels of each point: (B, K), 0 in padded places."""
        # Embeddings may be constants, so something else has to say that a gradient is wanted.
        wanted = torch.empty(0, requires_grad=torch.is_grad_enabled())
        logits_BK: Tensor = _Logits.apply(embedding_BD, labels_BK, self, wanted)  # type: ignore[no-untyped-call]
        return logits_BK


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding_BD: Tensor, labels_BK: Tensor, table: LabelClassifiers, _: Tensor) -> Tensor:
        present_BK = labels_BK != PAD
        wanted_BK = labels_BK.clamp(min=0)
        route = Route.to_owners(table.workers, wanted_BK, table.num_labels)
        rows_Q = route.send(wanted_BK.int()).long() - table.rows.start
        # Only how many labels each point asks of each owner travels, not the point of each pair.
        points_of = torch.arange(wanted_BK.numel(), device=labels_BK.device) // wanted_BK.shape[1]
        asked = route.owners * len(labels_BK) + points_of
        counts_G = table.workers.deal(asked.bincount(minlength=table.workers.size * len(labels_BK)).int()).long()
        embedding_GD = table.workers.gather(embedding_BD.detach())
        points_Q = torch.arange(len(counts_G), device=labels_BK.device).repeat_interleave(counts_G)
        products_Q = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            embedding_GD, table.weight, rows_Q, counts_G.cumsum(0) - counts_G, points_Q, 0
        )
        logits_BK = route.bring_back(products_Q + table.bias[rows_Q]).view(labels_BK.shape)
        ctx.save_for_backward(embedding_GD, rows_Q, points_Q, counts_G, present_BK)
        ctx.table, ctx.route = table, route
        return logits_BK.masked_fill(~present_BK, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        embedding_GD, rows_Q, points_Q, counts_G, present_BK = ctx.saved_tensors
        table: LabelClassifiers = ctx.table
        grad_Q = ctx.route.send(grads[0].masked_fill(~present_BK, 0))
        size, grad_BD = table.workers.size, None
        # To the embeddings: what this worker's rows have to say of every point, sent home and added up there.
        if ctx.needs_input_grad[0]:
            grad_GD = F.embedding_bag(
                rows_Q, table.weight, counts_G.cumsum(0) - counts_G, mode="sum", per_sample_weights=grad_Q
            )
            grad_BD = table.workers.deal(grad_GD).view(size, -1, grad_GD.shape[1]).sum(dim=0)
        # To the rows: the same sum from the other side, where every distinct row is a bag of points. Losses are means
        # over a worker's points, so the mean over workers divides by their number.
        order = rows_Q.argsort(stable=True)
        rows_U, counts_U = rows_Q[order].unique_consecutive(return_counts=True)
        grad_UD = F.embedding_bag(
            points_Q[order],
            embedding_GD,
            counts_U.cumsum(0) - counts_U,
            mode="sum",
            per_sample_weights=grad_Q[order] / size,
        )
        table.weight_grad.index_add_(0, rows_U, grad_UD)
        table.bias_grad.index_add_(0, rows_Q, grad_Q / size)
        return grad_BD, None, None, None
