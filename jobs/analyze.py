"""The numbers behind the report of a trained run, as JSON."""

import argparse
import json
from pathlib import Path

from elias_ray.cli import reporting_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, metavar="DIR", help="folder of a run")
    parser.add_argument("--output", metavar="FILE", help="where to write them (default: on the screen)")
    arguments = parser.parse_args()
    with reporting_errors():
        from elias_ray.analysis import analyze, open_trained  # torch and more, which --help need not wait for

        numbers = json.dumps(analyze(open_trained(arguments.run)), indent=1, ensure_ascii=False)
        if arguments.output is None:
            print(numbers)
        else:
            Path(arguments.output).write_text(numbers + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
