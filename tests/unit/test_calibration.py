"""The decision tree and the logistic regression: the same as scikit-learn's, before and after they were written."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from elias_ray import config as configs
from elias_ray.calibration import Calibration, fit_calibration

SETTINGS = configs.Calibration(max_leaves=16, pairs_per_leaf=20, smooth="product")
LOGISTIC = SETTINGS.model_copy(update={"smooth": "logistic"})


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


def test_with_a_logistic_regression_beside_the_tree() -> None:
    p_Q, q_Q, frequency_Q = pairs(3000, 0)
    positive_Q = np.random.default_rng(1).random(3000) < p_Q * q_Q
    tree = fit_calibration(p_Q, q_Q, frequency_Q, positive_Q, SETTINGS, seed=0)
    both = fit_calibration(p_Q, q_Q, frequency_Q, positive_Q, LOGISTIC, seed=0)

    def values(p: np.ndarray, q: np.ndarray, frequency: np.ndarray) -> np.ndarray:
        return np.stack([np.log(p), np.log(q / (1 - q)), np.log(1 + frequency)], axis=1)

    regression = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False), LogisticRegression())
    regression.fit(values(p_Q, q_Q, frequency_Q), positive_Q)
    new = pairs(500, 2)
    expected = tree.scores(*new) - new[0] * new[1] + regression.predict_proba(values(*new))[:, 1]
    np.testing.assert_allclose(both.scores(*new), expected, atol=1e-3)
    assert np.abs(both.scores(*new) - tree.scores(*new)).max() > 0.02
    again = Calibration.from_json(both.to_json())
    np.testing.assert_array_equal(again.scores(*new), both.scores(*new))


def test_the_logistic_regression_at_the_ends() -> None:
    """p that is 0, q that is next to 1, labels without a training point, and one frequency only."""
    p_Q, q_Q, _ = pairs(200, 4)
    p_Q[:3], q_Q[:3] = 0, (np.finfo(np.float32).tiny, 1 - 2**-24, 0.5)
    frequency_Q = np.zeros(200, np.int64)
    calibration = fit_calibration(p_Q, q_Q, frequency_Q, p_Q * q_Q > 0.3, LOGISTIC, seed=0)
    scores_Q = calibration.scores(p_Q, q_Q, frequency_Q)
    assert ((scores_Q >= 0) & (scores_Q <= 2)).all()


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("settings", [SETTINGS, LOGISTIC])
def test_pairs_of_one_kind_only(positive: bool, settings: configs.Calibration) -> None:
    p_Q, q_Q, frequency_Q = pairs(50, 3)
    calibration = fit_calibration(p_Q, q_Q, frequency_Q, np.full(50, positive), settings, seed=0)
    np.testing.assert_allclose(calibration.scores(p_Q, q_Q, frequency_Q), positive + p_Q * q_Q, rtol=1e-6)
