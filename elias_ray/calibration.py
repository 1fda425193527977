"""Calibration: what p of the model and q of the ranker are worth together, told from held-out points.

The final score of a pair is T(p, q, p * q, f) + S, where f is how many training points the label has and T, a decision
tree, the part of positives among the validation pairs of the same leaf. S tells apart what is in one leaf, and most
labels of a point are in leaves with next to no positives: in the paper it is p * q, here also a logistic regression.

Legend: Q pairs of a point and a label, V = 4 values of each: 1, log p, log (q / (1 - q)), log (1 + f).
"""

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from elias_ray import config as configs

LEAST = 1e-12  # of p and q, in their logarithms

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """The tree, node by node: where to go by which feature, and at a leaf what it says. And S."""

    left: npt.NDArray[np.int32]  # -1 at a leaf
    right: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: Doubles
    value: Doubles
    form_VV: Doubles  # S = sigma(v . form v); of no size where S = p * q

    def scores(self, p_Q: Floats, q_Q: Floats, frequency_Q: npt.NDArray[np.integer]) -> Floats:
        """T + S"""
        features = _features(p_Q, q_Q, frequency_Q)
        nodes_Q = np.zeros(len(features), np.int32)
        inner = np.arange(len(features))
        while len(inner := inner[self.left[nodes_Q[inner]] >= 0]):
            at = nodes_Q[inner]
            goes_left = features[inner, self.feature[at]] <= self.threshold[at]
            nodes_Q[inner] = np.where(goes_left, self.left[at], self.right[at])
        smooth_Q = features[:, 2]
        if self.form_VV.size:
            values_QV = _values(p_Q, q_Q, frequency_Q)
            smooth_Q = expit(((values_QV @ self.form_VV) * values_QV).sum(axis=1))
        return (self.value[nodes_Q] + smooth_Q).astype(np.float32)

    def to_json(self) -> bytes:
        return json.dumps({name: values.tolist() for name, values in vars(self).items()}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Calibration":
        values = {"form_VV": [], **json.loads(content)}  # trees of earlier versions come without
        ints = {name: np.array(values[name], np.int32) for name in ("left", "right", "feature")}
        threshold, value, form_VV = (np.array(values[name]) for name in ("threshold", "value", "form_VV"))
        return cls(**ints, threshold=threshold, value=value, form_VV=form_VV)


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
    smooth = settings.smooth == "logistic" and len(tree.classes_) == 2
    return Calibration(
        nodes.children_left.astype(np.int32),
        nodes.children_right.astype(np.int32),
        nodes.feature.astype(np.int32),
        nodes.threshold.copy(),
        value / nodes.value[:, 0].sum(axis=1),
        _fit_form(_values(p_Q, q_Q, frequency_Q), positive_Q) if smooth else np.zeros((0, 0)),
    )


def _fit_form(values_QV: Doubles, positive_Q: npt.NDArray[np.bool_]) -> Doubles:
    """Logistic regression on the values and all products of two of them, as a symmetric form: (V, V)."""
    size = values_QV.shape[1]
    mean_V, spread_V = values_QV.mean(axis=0), values_QV.std(axis=0)
    mean_V[0] = 0  # 1 stays as it is
    spread_V[spread_V == 0] = 1
    to_standard_VV = np.diag(1 / spread_V)
    to_standard_VV[:, 0] -= mean_V / spread_V
    standard_QV = values_QV @ to_standard_VV.T
    first, second = (places[1:] for places in np.triu_indices(size))  # but 1 * 1, which is the intercept
    regression = LogisticRegression(max_iter=1000).fit(standard_QV[:, first] * standard_QV[:, second], positive_Q)
    form_VV = np.zeros((size, size))
    form_VV[0, 0] = regression.intercept_[0]
    form_VV[first, second] = regression.coef_[0]
    return to_standard_VV.T @ ((form_VV + form_VV.T) / 2) @ to_standard_VV


def _values(p_Q: Floats, q_Q: Floats, frequency_Q: npt.NDArray[np.integer]) -> Doubles:
    log_p_Q = np.log(p_Q.astype(np.float64).clip(LEAST, 1))
    log_odds_Q = logit(q_Q.astype(np.float64).clip(LEAST, 1 - LEAST))
    return np.stack([np.ones_like(log_p_Q), log_p_Q, log_odds_Q, np.log1p(frequency_Q)], axis=1)


def _features(p_Q: Floats, q_Q: Floats, frequency_Q: npt.NDArray[np.integer]) -> Floats:
    return np.stack([p_Q, q_Q, p_Q * q_Q, frequency_Q], axis=1).astype(np.float32)
