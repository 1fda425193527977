"""Search: from cluster scores to the explored clusters, their paths to labels, and the K best labels.

Which clusters, paths and labels are chosen carries no gradient; the scores of what was chosen do, and are gathered anew
by the caller. So everything here works on detached log scores. log x <= 0, and 0 is the best.

Legend: B points, C clusters, b beam, P positive labels (padded), E explored clusters (padded), R entries of a row of A,
M = E * R paths of a point, K labels of the shortlist. PAD stands in every padded place.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

PAD = -1
NO_LABEL = 2**31 - 1  # sorts behind every label


class Reached(NamedTuple):
    """The labels that a point's paths reach, in ascending order, each with its best path: (B, M), padded."""

    labels_BM: Tensor  # int64; NO_LABEL in padded places
    log_scores_BM: Tensor  # log y^ of the best path; -inf in padded places
    paths_BM: Tensor  # int64; place of the best path among the point's M paths


def explore(log_scores_BC: Tensor, beam: int, parents_BP: Tensor | None = None, extra: int = 0) -> Tensor:
    """The clusters to explore: the `beam` best, and in training up to `extra` parents of positives not among them.

    Of more missing parents than `extra` the best-scored are taken, so that a point with a hundred labels costs no more
    than others. Equal scores go to the smaller cluster number. -> (B, beam + extra), PAD where there is none.
    """
    best_BE = smallest_by(-log_scores_BC, beam)
    if parents_BP is None or extra == 0:
        return best_BE
    parents_BP = parents_BP.sort(dim=1).values
    repeated_BP = torch.zeros_like(parents_BP, dtype=torch.bool)
    repeated_BP[:, 1:] = parents_BP[:, 1:] == parents_BP[:, :-1]
    in_beam_BP = (parents_BP[:, :, None] == best_BE[:, None, :]).any(dim=2)
    usable_BP = (parents_BP != PAD) & ~repeated_BP & ~in_beam_BP
    costs_BP = -log_scores_BC.gather(1, parents_BP.clamp(min=0))
    costs_BP = costs_BP.masked_fill(~usable_BP, torch.inf)
    chosen_BX = smallest_by(costs_BP, min(extra, parents_BP.shape[1]))  # places ascend with cluster numbers
    clusters_BX = parents_BP.gather(1, chosen_BX).masked_fill(~usable_BP.gather(1, chosen_BX), PAD)
    return torch.cat([best_BE, clusters_BX], dim=1)


def reach(labels_BM: Tensor, log_scores_BM: Tensor) -> Reached:
    """Every label that some path reaches, with the best of its paths (of equal ones the first)."""
    present_BM = labels_BM != PAD
    cost_BM = (-log_scores_BM).masked_fill(~present_BM, torch.inf)
    label_BM = labels_BM.long().masked_fill(~present_BM, NO_LABEL)
    # One integer sorts by label and then by cost: the bits of a float >= 0 are in the order of the floats.
    key_BM, paths_BM = ((label_BM << 32) | _bits(cost_BM)).sort(dim=1, stable=True)
    sorted_labels_BM = key_BM >> 32
    later_BM = torch.zeros_like(present_BM)
    later_BM[:, 1:] = sorted_labels_BM[:, 1:] == sorted_labels_BM[:, :-1]
    gone_BM = later_BM | (sorted_labels_BM == NO_LABEL)
    log_scores_BM = log_scores_BM.gather(1, paths_BM).masked_fill(gone_BM, -torch.inf)
    return Reached(sorted_labels_BM, log_scores_BM, paths_BM)


def shortlist(reached: Reached, size: int) -> tuple[Tensor, Tensor]:
    """The K labels of highest score and the path of each: (B, K) both, PAD where fewer are reachable.

    Equal scores go to the smaller label.
    """
    width = reached.labels_BM.shape[1]
    places_BK = smallest_by(-reached.log_scores_BM, min(size, width))
    missing_BK = reached.log_scores_BM.gather(1, places_BK) == -torch.inf
    labels_BK = reached.labels_BM.gather(1, places_BK).masked_fill(missing_BK, PAD)
    paths_BK = reached.paths_BM.gather(1, places_BK).masked_fill(missing_BK, PAD)
    rest = (0, max(0, size - width))
    return F.pad(labels_BK, rest, value=PAD), F.pad(paths_BK, rest, value=PAD)


def paths_to(reached: Reached, labels_BP: Tensor) -> Tensor:
    """The best path to each of these labels: (B, P), PAD where there is none."""
    places_BP = torch.searchsorted(reached.labels_BM, labels_BP.contiguous()).clamp(max=reached.labels_BM.shape[1] - 1)
    found_BP = (reached.labels_BM.gather(1, places_BP) == labels_BP) & (
        reached.log_scores_BM.gather(1, places_BP) > -torch.inf
    )
    return reached.paths_BM.gather(1, places_BP).masked_fill(~found_BP, PAD)


def smallest_by(cost_BN: Tensor, count: int) -> Tensor:
    """Places of the `count` smallest costs (each >= 0), best first; of equal costs the first place."""
    places_N = torch.arange(cost_BN.shape[1], device=cost_BN.device)
    key_BN = (_bits(cost_BN) << 32) | places_N
    return key_BN.topk(count, dim=1, largest=False).values & 0xFFFFFFFF


def _bits(cost: Tensor) -> Tensor:
    """float32 >= 0 as integers in the same order. NaN comes first, so that it is chosen and shows in the loss."""
    cost = cost.float().nan_to_num(nan=0.0, posinf=torch.inf)
    return (cost + 0.0).view(torch.int32).long()  # + 0.0 turns -0.0 into 0.0
