"""W_L, the label classifiers: a table of L rows, of which a step reads and changes only those it shortlists.

The table stands outside autograd: its gradient is added, row by row, to a buffer that lives as long as the table, so
no step makes a gradient of the size of W_L. No B x K x D tensor is ever made either: z_bk = <phi_b, w_k> is what
embedding_bag computes as the gradient of its per-sample weights, and both products of backward are embedding_bags.

Legend: B points, K labels of a shortlist, L labels (rows of this table), D embedding size, U distinct rows in a batch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elias_ray.shortlist import PAD


class LabelClassifiers:
    def __init__(self, weight_LD: Tensor, bias_L: Tensor) -> None:
        self.weight_LD, self.bias_L = weight_LD, bias_L
        self.weight_grad_LD, self.bias_grad_L = torch.zeros_like(weight_LD), torch.zeros_like(bias_L)

    def logits(self, embedding_BD: Tensor, labels_BK: Tensor) -> Tensor:
        """z_bk = w_l . phi_b + bias_l for the labels of each point: (B, K), 0 in padded places."""
        logits_BK: Tensor = _Logits.apply(embedding_BD, labels_BK, self)  # type: ignore[no-untyped-call]
        return logits_BK


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding_BD: Tensor, labels_BK: Tensor, table: LabelClassifiers) -> Tensor:
        present_BK = labels_BK != PAD
        rows_BK = labels_BK.clamp(min=0)
        ctx.save_for_backward(embedding_BD, rows_BK, present_BK)
        ctx.table = table
        B, K = labels_BK.shape
        offsets_B = torch.arange(0, B * K, K, device=labels_BK.device)
        bag_of = torch.arange(B, device=labels_BK.device).repeat_interleave(K)
        products = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            embedding_BD.contiguous(), table.weight_LD, rows_BK.flatten(), offsets_B, bag_of, 0
        )
        return (products.view(B, K) + table.bias_L[rows_BK]).masked_fill(~present_BK, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        embedding_BD, rows_BK, present_BK = ctx.saved_tensors
        table: LabelClassifiers = ctx.table
        grad_BK = grads[0].masked_fill(~present_BK, 0)
        grad_embedding_BD = F.embedding_bag(rows_BK, table.weight_LD, mode="sum", per_sample_weights=grad_BK)
        # The same sum from the rows' side: every distinct row is a bag of the points that shortlisted it.
        order = rows_BK.flatten().argsort(stable=True)
        rows_U, counts_U = rows_BK.flatten()[order].unique_consecutive(return_counts=True)
        points = order // rows_BK.shape[1]
        weights = grad_BK.flatten()[order]
        grad_UD = F.embedding_bag(
            points, embedding_BD.detach(), counts_U.cumsum(0) - counts_U, mode="sum", per_sample_weights=weights
        )
        table.weight_grad_LD.index_add_(0, rows_U, grad_UD)
        table.bias_grad_L.index_add_(0, rows_BK.flatten(), grad_BK.flatten())
        return grad_embedding_BD, None, None
