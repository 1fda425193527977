"""The method, in order. Each step reads what the ones before committed and commits one artifact of its own.

A step whose artifact is there is not done again, so running a job once more is how it is resumed.
"""

from elias_ray.artifacts import Folder
from elias_ray.clusters import make_clusters
from elias_ray.config import Config
from elias_ray.prepare import prepare


def train(run: Folder, config: Config) -> None:
    prepared = prepare(run, config)
    make_clusters(run, prepared, config)
