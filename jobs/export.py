"""A trained run as one portable folder, to be loaded elsewhere."""

import argparse

from elias_ray.artifacts import Folder
from elias_ray.cli import reporting_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, metavar="DIR", help="folder of a run")
    parser.add_argument("--output", required=True, metavar="DIR", help="new folder for the model, local or a URI")
    arguments = parser.parse_args()
    with reporting_errors():
        from elias_ray.export import export

        export(arguments.run, Folder.at(arguments.output))
        print(f"exported to {arguments.output}")


if __name__ == "__main__":
    main()
