"""Search for better settings: trials of them, compared on the validation points.

  python jobs/tune.py --run runs/alpha-beta --space alpha,beta
  python jobs/tune.py --run runs/rates --space rates.yaml --samples 20 --scheduler asha

Trials share what they have in common. Run again, a search goes on where it was.
"""

from functools import partial

from elias_ray.artifacts import Folder
from elias_ray.cli import job_parser, reporting_errors, start_job
from elias_ray.config import Config, load_config
from elias_ray.errors import UserError
from elias_ray.metrics import METRIC_NAMES
from elias_ray.space import READY, Space, Trial, read_space, show


def main() -> None:
    parser = job_parser(__doc__)
    ready = "; ".join(f"{name}: {', '.join(map(show, values))}" for name, (_, values) in READY.items())
    parser.add_argument("--space", required=True, metavar="NAMES|FILE", help=f"what to try: {ready}; or a YAML file")
    parser.add_argument("--samples", type=int, metavar="N", help="so many settings at random (default: the whole grid)")
    parser.add_argument("--scheduler", choices=("asha", "none"), default="asha", help="stops poor trials, or none")
    parser.add_argument("--metric", default="nDCG@5", help="to compare trials by (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print the trials and stop")
    arguments = parser.parse_intermixed_args()
    with reporting_errors():
        config = load_config(arguments.preset, arguments.overrides, data_path=arguments.data)
        space = read_space(arguments.space)
        if arguments.samples is not None and arguments.samples < 1:
            raise UserError(f"--samples {arguments.samples}: use 1 or more")
        trials = space.trials(config, arguments.samples)
        metric = {name.lower(): name for name in METRIC_NAMES}.get(arguments.metric.lower())
        if metric is None:
            raise UserError(f"--metric {arguments.metric}: use one of {', '.join(METRIC_NAMES)}")
        if arguments.dry_run:
            print("\n".join(trial.name for trial in trials))
            return
        start_job(arguments.run, config, partial(tune, space, trials, metric, arguments.scheduler))


def tune(space: Space, trials: list[Trial], metric: str, scheduler: str, run: Folder, config: Config) -> None:
    from elias_ray.search import search  # torch and more, which --help and a typing error need not wait for
    from elias_ray.search_report import report

    report(run, space, trials, search(run, trials, metric, scheduler), metric)


if __name__ == "__main__":
    main()
