"""The decision tree: the same as scikit-learn's, before and after it was written."""

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from elias_ray import config as configs
from elias_ray.calibration import Calibration, fit_calibration

SETTINGS = configs.Calibration(max_leaves=16, pairs_per_leaf=20)


def pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p_Q, q_Q = rng.random((2, count)).astype(np.float32)
    return p_Q, q_Q, rng.integers(1, 1000, count)


def test_equals_scikit_learn_and_survives_json() -> None:
    p_Q, q_Q, frequency_Q = pairs(3000, 0)
    positive_Q = np.random.default_rng(1).random(3000) < p_Q * q_Q
    calibration = fit_calibration(p_Q, q_Q, frequency_Q, positive_Q, SETTINGS, seed=0)
    assert (calibration.left < 0).sum() == 16
    tree = DecisionTreeClassifier(max_leaf_nodes=16, min_samples_leaf=20, random_state=0)
    features = np.stack([p_Q, q_Q, p_Q * q_Q, frequency_Q], axis=1)
    tree.fit(features, positive_Q)
    new = pairs(500, 2)
    expected = tree.predict_proba(np.stack([new[0], new[1], new[0] * new[1], new[2]], axis=1))[:, 1] + new[0] * new[1]
    np.testing.assert_allclose(calibration.scores(*new), expected, rtol=1e-5)
    again = Calibration.from_json(calibration.to_json())
    np.testing.assert_array_equal(again.scores(*new), calibration.scores(*new))


@pytest.mark.parametrize("positive", [True, False])
def test_pairs_of_one_kind_only(positive: bool) -> None:
    p_Q, q_Q, frequency_Q = pairs(50, 3)
    calibration = fit_calibration(p_Q, q_Q, frequency_Q, np.full(50, positive), SETTINGS, seed=0)
    np.testing.assert_allclose(calibration.scores(p_Q, q_Q, frequency_Q), positive + p_Q * q_Q, rtol=1e-6)
