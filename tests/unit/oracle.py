"""ELIAS straight from its equations: dense, slow, one point, one cluster, one label at a time. The tests' truth."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Problem:
    """A small problem; all tensors float64. Rows of the adjacency are lists of labels."""

    phi: Tensor  # (B, D)
    w_c: Tensor  # (C, D)
    b_c: Tensor  # (C,)
    rows: list[list[int]]  # labels of each row of A
    a: list[Tensor]  # weights of each row of A
    w_l: Tensor  # (L, D)
    b_l: Tensor  # (L,)
    positives: list[list[int]]
    parents: list[int]  # of each label; -1: none
    alpha: float
    beta: float | None  # None: stage 1
    beam: int
    extra: int
    k: int
    shortlist_weight: float
    drawn: list[int] | None = None  # labels drawn at random, to tell the loss over all
    all_labels_weight: float = 0.0


@dataclass
class Answer:
    explored: list[list[int]]
    shortlist: list[list[int]]
    y_hat: list[dict[int, Tensor]]  # of every reached label
    p: list[dict[int, Tensor]]  # of the shortlist
    classification_loss: Tensor
    shortlist_loss: Tensor
    loss: Tensor


def solve(q: Problem) -> Answer:
    one = torch.ones((), dtype=torch.float64)
    explored, shortlists, y_hats, ps = [], [], [], []
    classification, search, searched = torch.zeros(()), torch.zeros(()), 0
    edge = [
        [one for _ in labels] if q.beta is None else list(torch.minimum(one, q.beta * torch.softmax(weights, 0)))
        for labels, weights in zip(q.rows, q.a, strict=True)
    ]
    for b in range(len(q.phi)):
        # Equation 1: cluster scores
        s = torch.minimum(one, q.alpha * torch.softmax(q.w_c @ q.phi[b] + q.b_c, 0))

        def rank(c: int, s: Tensor = s) -> tuple[float, int]:
            return (-float(s[c].detach()), c)

        # Clusters explored
        clusters = sorted(range(len(q.w_c)), key=rank)[: q.beam]
        missing = {q.parents[label] for label in q.positives[b]} - {-1} - set(clusters)
        clusters += sorted(missing, key=rank)[: q.extra]
        explored.append(clusters)

        # Paths, and the best to each label
        y_hat: dict[int, Tensor] = {}
        for c in clusters:
            for place, label in enumerate(q.rows[c]):
                path = s[c] * edge[c][place]
                if label not in y_hat or float(path.detach()) > float(y_hat[label].detach()):
                    y_hat[label] = path
        y_hats.append(y_hat)
        chosen = sorted(y_hat, key=lambda label: (-float(y_hat[label].detach()), label))[: q.k]
        shortlists.append(chosen)

        # Label scores, and both losses
        p = {label: torch.sigmoid(q.w_l[label] @ q.phi[b] + q.b_l[label]) * y_hat[label] for label in chosen}
        ps.append(p)
        for label, value in p.items():
            classification = classification - torch.log(value if label in q.positives[b] else 1 - value)
        for label in q.positives[b]:
            if label in y_hat:
                search = search - torch.log(y_hat[label])
                searched += 1
    classification = classification / (len(q.phi) * q.k)
    search = search / max(1, searched)
    loss = classification + q.shortlist_weight * search
    if q.drawn is not None:
        against_all = torch.zeros(())
        for b in range(len(q.phi)):
            for label in q.drawn:
                score = torch.sigmoid(q.w_l[label] @ q.phi[b] + q.b_l[label])
                against_all = against_all - torch.log(score if label in q.positives[b] else 1 - score)
        against_all = against_all * len(q.w_l) / len(q.drawn)
        loss = loss + q.all_labels_weight * against_all / (len(q.phi) * q.k)
    return Answer(explored, shortlists, y_hats, ps, classification, search, loss)
