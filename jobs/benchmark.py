"""ELIAS beside its peers: same points, same tf-idf, same encoder, one table.

  python jobs/benchmark.py --run runs/apidocs
  python jobs/benchmark.py --run runs/mine --data PATH --peers xr-linear,ova --budget 60

Trains ELIAS first, unless the run is there already; then every peer, each in a process of its own. Run again, it goes
on with what is missing.
"""

from functools import partial

from elias_ray.artifacts import Folder
from elias_ray.cli import job_parser, reporting_errors, start_job, train
from elias_ray.config import Config, load_config
from elias_ray.errors import UserError
from elias_ray.peers import PEERS


def main() -> None:
    parser = job_parser(__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), metavar="NAMES", help="(default: %(default)s)")
    parser.add_argument(
        "--budget", type=float, default=30.0, metavar="MINUTES", help="for each peer, in all (default: %(default)g)"
    )
    arguments = parser.parse_intermixed_args()
    with reporting_errors():
        config = load_config(arguments.preset, arguments.overrides, data_path=arguments.data)
        peers = arguments.peers.split(",") if arguments.peers else []
        for name in peers:
            if name not in PEERS:
                raise UserError(f"--peers {arguments.peers}: '{name}' is not one of {', '.join(PEERS)}")
        if arguments.budget <= 0:
            raise UserError(f"--budget {arguments.budget:g}: use more than 0 minutes")
        start_job(arguments.run, config, partial(measure, peers, arguments.budget))


def measure(peers: list[str], minutes: float, run: Folder, config: Config) -> None:
    train(run, config)
    import ray

    ray.shutdown()  # what follows is measured on an idle machine
    from elias_ray.benchmark import benchmark
    from elias_ray.plan import open_run

    benchmark(open_run(run.location)[0], peers, minutes)


if __name__ == "__main__":
    main()
