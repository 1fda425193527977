"""When a scheduler stops the trials of a search."""

import pytest

from elias_ray.config import load_config
from elias_ray.search import halving
from elias_ray.space import Space


@pytest.mark.parametrize(
    ("key", "epochs", "behind"),
    [
        ("search.alpha", (3, 3), [2, 4]),
        ("search.beta", (3, 3), [4]),  # they share their first stage
        ("search.alpha", (1, 3), [3]),  # not behind the last, the fourth
        ("search.alpha", (20, 20), [2, 4, 8, 16, 32]),
        ("search.beta", (2, 1), []),
    ],
)
def test_the_better_half_goes_on(key: str, epochs: tuple[int, int], behind: list[int]) -> None:
    stages = [f"stage{number + 1}.frozen_epochs={count}" for number, count in enumerate(epochs)]
    scheduler = halving(Space({key: [1.0, 2.0]}).trials(load_config("apidocs", stages), None))
    rungs = [milestone for milestone, _ in scheduler._brackets[0]._rungs]
    assert sorted(milestone for milestone in rungs if milestone <= sum(epochs)) == behind
