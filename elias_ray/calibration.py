"""Calibration: what p of the model and q of the ranker are worth together, by a decision tree on held-out points.

The final score of a pair is T(p, q, p * q, f) + p * q, where f is how many training points the label has and T the part
of positives among the validation pairs of the same leaf.

Legend: Q pairs of a point and a label.
"""

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeClassifier

from elias_ray import config as configs

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Calibration:
    """The tree, node by node: where to go by which feature, and at a leaf what it says."""

    left: npt.NDArray[np.int32]  # -1 at a leaf
    right: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]

    def scores(self, p_Q: Floats, q_Q: Floats, frequency_Q: npt.NDArray[np.integer]) -> Floats:
        """T + p * q"""
        features = _features(p_Q, q_Q, frequency_Q)
        nodes_Q = np.zeros(len(features), np.int32)
        inner = np.arange(len(features))
        while len(inner := inner[self.left[nodes_Q[inner]] >= 0]):
            at = nodes_Q[inner]
            goes_left = features[inner, self.feature[at]] <= self.threshold[at]
            nodes_Q[inner] = np.where(goes_left, self.left[at], self.right[at])
        return (self.value[nodes_Q] + features[:, 2]).astype(np.float32)

    def to_json(self) -> bytes:
        return json.dumps({name: values.tolist() for name, values in vars(self).items()}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Calibration":
        values = json.loads(content)
        ints = {name: np.array(values[name], np.int32) for name in ("left", "right", "feature")}
        return cls(**ints, threshold=np.array(values["threshold"]), value=np.array(values["value"]))


def fit_calibration(
    p_Q: Floats,
    q_Q: Floats,
    frequency_Q: npt.NDArray[np.integer],
    positive_Q: npt.NDArray[np.bool_],
    settings: configs.Calibration,
    seed: int,
) -> Calibration:
    tree = DecisionTreeClassifier(
        max_leaf_nodes=settings.max_leaves, min_samples_leaf=settings.pairs_per_leaf, random_state=seed
    )
    tree.fit(_features(p_Q, q_Q, frequency_Q), positive_Q)
    nodes = tree.tree_
    # A tree of one class only has no column for the other.
    value = nodes.value[:, 0, -1] if tree.classes_[-1] else np.zeros(nodes.node_count)
    return Calibration(
        nodes.children_left.astype(np.int32),
        nodes.children_right.astype(np.int32),
        nodes.feature.astype(np.int32),
        nodes.threshold.copy(),
        value / nodes.value[:, 0].sum(axis=1),
    )


def _features(p_Q: Floats, q_Q: Floats, frequency_Q: npt.NDArray[np.integer]) -> Floats:
    return np.stack([p_Q, q_Q, p_Q * q_Q, frequency_Q], axis=1).astype(np.float32)
