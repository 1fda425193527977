"""Everything, from data to a trained model: every step that the run lacks, in order."""

from elias_ray.artifacts import Folder
from elias_ray.cli import run_job
from elias_ray.config import Config


def train(run: Folder, config: Config) -> None:
    from elias_ray import pipeline  # torch and more, which --help and a typing error need not wait for

    pipeline.train(run, config)


if __name__ == "__main__":
    run_job("Run every step of the method that the run lacks; run again to resume.", train)
