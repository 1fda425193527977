"""Everything, from data to a trained model: every step that the run lacks, in order."""

from elias_ray.cli import run_job, train

if __name__ == "__main__":
    run_job("Run every step of the method that the run lacks; run again to resume.", train)
