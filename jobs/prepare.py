"""Read, check, tokenise and weigh a dataset: the first step of a run, on its own."""

from elias_ray.cli import run_job
from elias_ray.prepare import prepare

if __name__ == "__main__":
    run_job("Prepare a dataset in any of the known formats: validate, tokenise, tf-idf, Parquet shards.", prepare)
