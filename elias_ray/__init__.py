"""ELIAS, End-to-end Learning to Index and Search, on Ray."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elias_ray.predictor import Predictor


def load(location: str | os.PathLike[str]) -> "Predictor":
    """The model of a run that is through, or of an exported folder: `load(DIR).predict(["a text"], top_k=5)`."""
    from elias_ray import predictor  # torch and more, for which `import elias_ray` need not wait

    return predictor.load(location)
