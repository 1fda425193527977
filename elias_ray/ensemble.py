"""Several members, one score: the mean over members of what each gives a label, 0 where it has not predicted it.

Legend: N points, M members, K labels of a member.
"""

from collections.abc import Sequence

import numpy as np

from elias_ray.metrics import PAD
from elias_ray.predictions import TOP_K, Predicted


def average(members: Sequence[Predicted], size: int = TOP_K) -> Predicted:
    """The best labels of the union."""
    labels_NK = np.concatenate([member.labels_NK for member in members], axis=1)
    scores_NK = np.concatenate([member.scores_NK for member in members], axis=1) / len(members)
    order_NK = np.argsort(labels_NK, axis=1, kind="stable")
    labels_NK, scores_NK = (np.take_along_axis(values, order_NK, axis=1) for values in (labels_NK, scores_NK))
    first_NK = np.ones(labels_NK.shape, np.bool_)  # of each label; its scores are added up there
    first_NK[:, 1:] = labels_NK[:, 1:] != labels_NK[:, :-1]
    sums = np.add.reduceat(scores_NK.ravel(), np.flatnonzero(first_NK.ravel()), dtype=np.float32)
    united = Predicted(np.where(first_NK, labels_NK, PAD), np.zeros(labels_NK.shape, np.float32))
    united.scores_NK[first_NK] = sums
    united.scores_NK[united.labels_NK == PAD] = 0
    return united.best(size)
