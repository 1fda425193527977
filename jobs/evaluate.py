"""The test figures of a trained run: every row of the build-up, in total and by label decile."""

import argparse

from elias_ray.cli import reporting_errors
from elias_ray.evaluation import evaluate_run
from elias_ray.plan import open_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, metavar="DIR", help="folder of a run")
    arguments = parser.parse_args()
    with reporting_errors():
        members = open_run(arguments.run)
        evaluate_run(members[0].run, members)


if __name__ == "__main__":
    main()
