"""Search: from cluster scores to the explored clusters, their paths to labels, and the K best labels.

Which clusters, paths and labels are chosen carries no gradient; the scores of what was chosen do, and are gathered anew
by the caller. So everything here works on detached log scores. log x <= 0, and 0 is the best.

Legend: B points, b beam, P positive labels (padded), N clusters that may be explored, E explored clusters (padded),
R entries of a row of A, M = E * R paths of a point, K labels of the shortlist. PAD stands in every padded place.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from elias_ray.metrics import PAD

NO_LABEL = 2**31 - 1  # sorts behind every label
MANY = 32  # groups for each that is wanted of many
PATHS_AT_ONCE = {"cpu": 2**18, "cuda": 2**22}  # of some points, so that they fit into a cache, or keep a GPU busy
PATHS_PER_LABEL = 3  # of the best paths, about as many are looked at for each label of a shortlist
MOST_COST = torch.finfo(torch.float32).max  # of a path that leads anywhere
FEW_THREADS = 4  # numpy, with one, sorts integers some ten times as fast as torch where the CPU has AVX-512
SAMPLED = 256  # of the best paths, about as many are in the sample that tells what they cost


def explore(clusters_BN: Tensor, cost_BN: Tensor, num_best: int, beam: int, extra: int) -> Tensor:
    """Which of these to explore: the `beam` best, and in training up to `extra` parents of positives not among them.

    The first `num_best` are the best of every worker, ascending where they cost the same; behind them the parents
    ascend, PAD where a point has fewer. Of more missing parents than `extra` the best-scored are taken, so that a point
    with a hundred labels costs no more than others. Equal costs go to the smaller cluster number.
    -> their places, (B, E), PAD where there is none.
    """
    best_BE = smallest_by(cost_BN[:, :num_best], beam)
    parents_BP = clusters_BN[:, num_best:]
    if parents_BP.shape[1] == 0 or extra == 0:
        return best_BE
    repeated_BP = torch.zeros_like(parents_BP, dtype=torch.bool)
    repeated_BP[:, 1:] = parents_BP[:, 1:] == parents_BP[:, :-1]
    in_beam_BP = (parents_BP[:, :, None] == clusters_BN.gather(1, best_BE)[:, None, :]).any(dim=2)
    usable_BP = (parents_BP != PAD) & ~repeated_BP & ~in_beam_BP
    cost_BP = cost_BN[:, num_best:].masked_fill(~usable_BP, torch.inf)
    chosen_BX = smallest_by(cost_BP, min(extra, parents_BP.shape[1]))  # places ascend with cluster numbers
    return torch.cat([best_BE, (chosen_BX + num_best).masked_fill(~usable_BP.gather(1, chosen_BX), PAD)], dim=1)


def shortlist(labels_BM: Tensor, log_scores_BM: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The K labels of highest score and the best path to each: (B, K) both, PAD where fewer are reachable.

    Equal scores go to the smaller label, and of equal paths to a label the first is taken. Most paths are too weak to
    matter, so first about as many as usually suffice are looked at, and all of them only of points where those do not
    lead to K labels. A sample tells what the best so many cost.
    """
    cost_BM = log_scores_BM.neg().nan_to_num_(nan=0.0, posinf=torch.inf).masked_fill_(labels_BM == PAD, torch.inf)
    few = PATHS_PER_LABEL * size
    if 2 * few > cost_BM.shape[1]:  # little would be spared, and lost where those are too few
        return _best_distinct(labels_BM, cost_BM, size)
    stride = max(1, few // SAMPLED)
    limit_B1 = cost_BM[:, ::stride].kthvalue(-(-few // stride), dim=1, keepdim=True).values
    paths_BN = places_where(cost_BM <= limit_B1.clamp(max=MOST_COST))
    missing_BN = paths_BN == PAD
    labels_BN = labels_BM.gather(1, paths_BN.clamp(min=0)).masked_fill(missing_BN, PAD)
    cost_BN = cost_BM.gather(1, paths_BN.clamp(min=0)).masked_fill(missing_BN, torch.inf)
    labels_BK, places_BK = _best_distinct(labels_BN, cost_BN, size)
    paths_BK = paths_BN.gather(1, places_BK.clamp(min=0)).masked_fill(places_BK == PAD, PAD)
    too_few = ((labels_BK[:, -1] == PAD) & (limit_B1[:, 0] < torch.inf)).nonzero()[:, 0]
    if len(too_few):
        labels_BK[too_few], paths_BK[too_few] = _best_distinct(labels_BM[too_few], cost_BM[too_few], size)
    return labels_BK, paths_BK


def _best_distinct(labels_BN: Tensor, cost_BN: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The labels of lowest cost, each once, and the place of each: (B, size) both. Infinite costs do not count."""
    width = labels_BN.shape[1]
    labels_BN = labels_BN.long().masked_fill(cost_BN == torch.inf, NO_LABEL)
    places_N = torch.arange(width, device=labels_BN.device)
    key_BN = smallest((labels_BN << 32) | places_N, width)  # all, by label and then by place
    labels_BN, places_BN = key_BN >> 32, key_BN & 0xFFFFFFFF
    begins_BN = torch.ones_like(labels_BN, dtype=torch.bool)
    begins_BN[:, 1:] = labels_BN[:, 1:] != labels_BN[:, :-1]
    # Of each label the lowest cost, and of equal ones the first place, stand for all its paths.
    key_BN = keyed(cost_BN.gather(1, places_BN), places_BN)
    label_of = begins_BN.flatten().cumsum(0) - 1
    best = key_BN.new_full((int(label_of[-1]) + 1,), torch.iinfo(torch.int64).max)
    best.scatter_reduce_(0, label_of, key_BN.flatten(), "amin")
    key_BN = best.index_select(0, label_of).view(key_BN.shape)
    cost_BN = (key_BN >> 32).int().view(torch.float32).masked_fill_(begins_BN.logical_not_(), torch.inf)
    chosen_BK = smallest_by(cost_BN, min(size, width))
    missing_BK = cost_BN.gather(1, chosen_BK) == torch.inf
    labels_BK = labels_BN.gather(1, chosen_BK).masked_fill(missing_BK, PAD)
    places_BK = (key_BN.gather(1, chosen_BK) & 0xFFFFFFFF).masked_fill(missing_BK, PAD)
    rest = (0, max(0, size - width))
    return F.pad(labels_BK, rest, value=PAD), F.pad(places_BK, rest, value=PAD)


def some_points_at_once(paths: int, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of these, a row a point, where each point has so many paths."""
    points = max(1, PATHS_AT_ONCE[columns[0].device.type] // paths)
    return zip(*(column.split(points) for column in columns), strict=True)


def places_where(chosen_BM: Tensor) -> Tensor:
    """The places of the chosen in each row, ascending: (B, most chosen in a row, at least 1), PAD behind them."""
    num_rows, width = chosen_BM.shape
    flat = chosen_BM.flatten().nonzero()[:, 0]
    rows_B = torch.arange(num_rows, device=flat.device)
    ends_B = torch.searchsorted(flat, (rows_B + 1) * width)
    counts_B = ends_B.diff(prepend=ends_B.new_zeros(1))
    most = max(1, int(counts_B.max()))
    places_BN = torch.full((num_rows, most), PAD, device=flat.device)
    to = torch.arange(len(flat), device=flat.device) + (rows_B * most - ends_B + counts_B).repeat_interleave(counts_B)
    places_BN.view(-1)[to] = flat - (rows_B * width).repeat_interleave(counts_B)
    return places_BN


def best_by(score_BN: Tensor, most_B1: Tensor, count: int) -> Tensor:
    """Places of the `count` highest scores, best first, where all above `most_B1` are equal; of equal ones the first
    place. Many scores are passed over once, and only those looked at that can be among the best.
    """
    num_points, width = score_BN.shape
    groups = MANY * count
    rounds = width // groups
    if rounds < 2:
        return smallest_by((most_B1 - score_BN).clamp_(min=0), count)
    # The best of each of some groups; as many groups as are wanted have one of no more than the limit.
    best_BG = score_BN[:, : rounds * groups].unflatten(1, (rounds, groups)).amax(dim=1)
    least_BG = (most_B1 - best_BG).clamp_(min=0).nan_to_num_(nan=0.0, posinf=torch.inf)
    groups_B1M = places_where(least_BG <= least_BG.kthvalue(count, dim=1, keepdim=True).values)[:, None]
    firsts_R1 = groups * torch.arange(rounds, device=score_BN.device)[:, None]
    places_BRM = (groups_B1M + firsts_R1).masked_fill(groups_B1M == PAD, PAD)
    in_no_group = torch.arange(rounds * groups, width, device=score_BN.device).expand(num_points, -1)
    places_BM = torch.cat([places_BRM.flatten(1), in_no_group], dim=1)
    missing_BM = places_BM == PAD
    cost_BM = (most_B1 - score_BN.gather(1, places_BM.clamp(min=0))).clamp_(min=0).masked_fill_(missing_BM, torch.inf)
    return smallest(keyed(cost_BM, places_BM.masked_fill_(missing_BM, NO_LABEL)), count) & 0xFFFFFFFF


def smallest_by(cost_BN: Tensor, count: int) -> Tensor:
    """Places of the `count` smallest costs (each >= 0), best first; of equal costs the first place."""
    places_N = torch.arange(cost_BN.shape[1], device=cost_BN.device)
    return smallest(keyed(cost_BN, places_N), count) & 0xFFFFFFFF


def smallest(keys_BN: Tensor, count: int) -> Tensor:
    """The `count` smallest keys of each row (or of the only one), ascending. May leave those given in another order."""
    if keys_BN.device.type == "cpu" and torch.get_num_threads() <= FEW_THREADS:
        keys_BN.numpy().sort()
        return keys_BN[..., :count]
    if count == keys_BN.shape[-1]:
        return keys_BN.sort().values
    return keys_BN.topk(count, largest=False).values


def keyed(cost: Tensor, number: Tensor) -> Tensor:
    """Integers that sort by cost (each >= 0) and then by number (0 to 2^31 - 1)."""
    return (_bits(cost) << 32) | number


def _bits(cost: Tensor) -> Tensor:
    """float32 >= 0 as integers in the same order. NaN comes first, so that it is chosen and shows in the loss."""
    cost = cost.float().nan_to_num(nan=0.0, posinf=torch.inf)
    return (cost + 0.0).view(torch.int32).long()  # + 0.0 turns -0.0 into 0.0
