"""L = L_c + lambda * L_s, in logs.

Legend: B points, K labels of the shortlist, P positive labels (padded).
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def log_one_minus(log_x: Tensor) -> Tensor:
    """log(1 - x) from log x <= 0; -inf at x = 1, and never a NaN gradient."""
    certain = log_x >= 0
    return torch.log(-torch.expm1(log_x.masked_fill(certain, -1.0))).masked_fill(certain, -torch.inf)


def classification_loss(logits_BK: Tensor, log_shortlist_BK: Tensor, positive_BK: Tensor, present_BK: Tensor) -> Tensor:
    """L_c: binary cross entropy of p = sigmoid(z) * y^ over the shortlist, averaged over B x K places.

    1 - p = (1 - y^) + y^ * sigmoid(-z), which keeps its digits where p is near 1.
    """
    log_p_BK = F.logsigmoid(logits_BK) + log_shortlist_BK
    log_miss_BK = log_one_minus(log_shortlist_BK)
    log_rejected_BK = log_shortlist_BK + F.logsigmoid(-logits_BK)
    sure_BK = log_miss_BK == -torch.inf  # y^ = 1: the first term is 0, and its infinite log must not meet a gradient
    both_BK = torch.logaddexp(log_miss_BK.masked_fill(sure_BK, 0.0), log_rejected_BK)
    log_not_p_BK = torch.where(sure_BK, log_rejected_BK, both_BK)
    log_likelihood_BK = torch.where(positive_BK, log_p_BK, log_not_p_BK).masked_fill(~present_BK, 0)
    return -log_likelihood_BK.sum() / max(1, logits_BK.numel())


def shortlist_loss(log_scores_BP: Tensor, reached_BP: Tensor, num_reached: Tensor) -> Tensor:
    """L_s: -log y^ of the positive labels that some explored path reaches, over their number."""
    return -log_scores_BP.masked_fill(~reached_BP, 0).sum() / num_reached.clamp(min=torch.finfo().tiny)
