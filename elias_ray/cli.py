"""What the jobs have in common: their arguments, the connection to Ray, and how errors reach the user."""

import argparse
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from elias_ray.artifacts import Folder, record_config
from elias_ray.config import DEFAULT_PRESET, Config, describe_keys, is_uri, load_config, preset_names
from elias_ray.errors import UserError
from elias_ray.run_lock import owning

SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # which `ray job submit` sets for what it starts


def run_job(
    description: str,
    job: Callable[[Folder, Config], object],
    argv: Sequence[str] | None = None,
    preset: str = DEFAULT_PRESET,
    smoke: Sequence[str] = (),
    smoke_data: str | None = None,
) -> None:
    """Parse, connect, call. `smoke` is what --smoke changes of the preset, `smoke_data` what it trains on."""
    parser = job_parser(description, preset)
    parser.add_argument("--show-config", action="store_true", help="print the resolved config and stop")
    parser.add_argument("--dry-run", action="store_true", help="print what it would take and stop")
    if smoke:
        parser.add_argument("--smoke", action="store_true", help="the same on a small generated dataset, without a GPU")
    arguments = parser.parse_intermixed_args(argv)
    with reporting_errors():
        in_smoke = smoke and arguments.smoke
        if in_smoke and arguments.data is not None:
            raise UserError("--smoke makes its own data; use it without --data")
        data = smoke_data if in_smoke else arguments.data
        config = load_config(arguments.preset, [*(smoke if in_smoke else ()), *arguments.overrides], data_path=data)
        if arguments.show_config:
            print(config.to_yaml(), end="")
            return
        run = Folder.at(arguments.run) if arguments.run is not None else None
        if arguments.dry_run:
            from elias_ray.dry_run import show_plan

            show_plan(run, config, "" if in_smoke else arguments.preset)
            return
        start_job(arguments.run, config, job)


def job_parser(description: str, preset: str = DEFAULT_PRESET) -> argparse.ArgumentParser:
    """What jobs that make a run are told."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="keys, their defaults and meaning (a preset changes some of them):\n" + "\n".join(describe_keys()),
    )
    parser.add_argument(
        "--run", "--storage", metavar="DIR", help="folder of the run, local or a URI; run again to resume"
    )
    parser.add_argument("--data", metavar="PATH", help="the data, short for data.path=PATH")
    parser.add_argument(
        "--preset",
        default=preset,
        metavar="NAME|FILE",
        help=f"{', '.join(preset_names())}, or a YAML file (default: %(default)s)",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="change a key of the preset")
    return parser


def start_job(location: str | None, config: Config, job: Callable[[Folder, Config], object]) -> None:
    """In its run, which nobody else may write into meanwhile."""
    if location is None:
        raise UserError("--run DIR is missing: the folder where this run keeps everything it makes")
    if SUBMITTED in os.environ and not is_uri(location) and not os.path.isabs(location):
        # A submitted job works in a copy of the folder it was submitted from, which is deleted after it.
        raise UserError(
            f"--run {location} would be lost: a submitted job works in a copy; use an absolute path or a URI"
        )
    run = Folder.at(location)
    with owning(run):
        record_config(run, config)
        connect_to_ray()
        job(run, config)


def train(run: Folder, config: Config) -> None:
    """Every step of the method; the job of most jobs."""
    from elias_ray import pipeline  # torch and more, which --help and a typing error need not wait for

    pipeline.train(run, config)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """An error that the user can mend is the last line on the screen, and the exit code is 1."""
    try:
        yield
    except UserError as error:
        sys.stdout.flush()
        print(f"error: {getattr(error, 'cause', error)}", file=sys.stderr)  # `cause`: as it was where a task raised it
        sys.exit(1)


def connect_to_ray() -> None:
    """Join the cluster that RAY_ADDRESS names (a submitted job has it), else start Ray here; unless we are in one."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its new default, without the warning
    import ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS") or None
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "://" not in host:  # Ray itself would go on knocking for many minutes
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise UserError(
                f"RAY_ADDRESS={address}: nothing answers there ({error}); unset it to start Ray on this machine"
            ) from None
    try:
        # What workers have to say to the user comes by way of the driver; the rest is in Ray's own logs.
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise UserError(
            f"RAY_ADDRESS={address}: cannot join this Ray ({str(error).strip().splitlines()[0]}); if it uses token "
            "authentication, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
        ) from None
