"""A trained run as a web page: its figures, what its index has learned, and where it errs."""

import argparse

from elias_ray.artifacts import Folder
from elias_ray.cli import reporting_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, metavar="DIR", help="folder of a run")
    parser.add_argument("--output", metavar="DIR", help="folder for the page and its pictures (default: DIR/report)")
    arguments = parser.parse_args()
    with reporting_errors():
        from elias_ray.analysis import open_trained  # torch and more, which --help need not wait for
        from elias_ray.report import REPORT, write_report

        members = open_trained(arguments.run)
        output = Folder.at(arguments.output) if arguments.output else members[0].run / REPORT
        print(f"report: {write_report(members, output, anew=True)}")


if __name__ == "__main__":
    main()
