"""Read, check, tokenise and weigh a dataset: the first step of a run, on its own."""

from elias_ray.artifacts import Folder, record_config
from elias_ray.cli import run_job
from elias_ray.config import Config
from elias_ray.prepare import prepare


def job(run: Folder, config: Config) -> None:
    record_config(run, config)
    prepare(run, config)


if __name__ == "__main__":
    run_job("Prepare a dataset in any of the known formats: validate, tokenise, tf-idf, Parquet shards.", job)
