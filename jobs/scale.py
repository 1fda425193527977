"""What grows with the number of labels: the same training on generated data of Amazon-3M's shape, in several sizes.

  python jobs/scale.py --run runs/scale
  python jobs/scale.py --run runs/scale --labels 30000,300000 training.precision=float32

Prepares, clusters, trains some hundred steps of each stage and predicts; then a table of step times and their parts,
bytes sent, memory measured and planned. Run again, it goes on where it was.
"""

from functools import partial

from elias_ray import generated
from elias_ray.artifacts import Folder
from elias_ray.cli import job_parser, reporting_errors, start_job
from elias_ray.config import Config, load_config
from elias_ray.errors import UserError

SIZES = "30000,300000,2812281"


def main() -> None:
    parser = job_parser(__doc__, preset="scale")
    parser.add_argument("--labels", default=SIZES, metavar="NUMBERS", help="sizes, one after the other (%(default)s)")
    arguments = parser.parse_intermixed_args()
    with reporting_errors():
        config = load_config(arguments.preset, arguments.overrides, data_path=arguments.data)
        if not config.data.path.startswith(generated.PREFIX):
            raise UserError(f"data.path={config.data.path}: only generated data comes in any size; leave out --data")
        sizes = arguments.labels.split(",")
        for size in sizes:
            if not size.isdigit() or not int(size):
                raise UserError(f"--labels {arguments.labels}: '{size}' is not a number of labels")
        start_job(arguments.run, config, partial(scale, [int(size) for size in sizes]))


def scale(sizes: list[int], run: Folder, config: Config) -> None:
    from elias_ray.scale import measure_scale  # torch and more, which --help and a typing error need not wait for

    measure_scale(run, config, sizes)


if __name__ == "__main__":
    main()
