"""What a search has found: a table best first, trials.csv, best.yaml, and a picture."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence

from elias_ray.artifacts import Folder
from elias_ray.errors import UserError
from elias_ray.metrics import METRIC_NAMES, format_rows
from elias_ray.search import Record, home_of
from elias_ray.search_picture import draw
from elias_ray.sharing import taken
from elias_ray.space import Space, Trial

TABLE, BEST, PICTURE = "trials.csv", "best.yaml", "search.png"
SHOWN = ("P@1", "P@5", "nDCG@5", "R@100")


def report(folder: Folder, space: Space, trials: Sequence[Trial], records: Mapping[str, Record], metric: str) -> None:
    """On the screen and in the search's folder. The first of the `trials` is the config as it was given."""
    ranked = best_first(trials, records, metric)
    best, given = ranked[0], trials[0]
    if records[best.name].state != "done":
        record = records[best.name]
        raise UserError(f"no trial came to its end; {best.name} {record.state}: {record.error}".rstrip(": "))
    folder.write(TABLE, as_csv(folder, ranked, records))
    folder.write(BEST, best.config.to_yaml().encode())
    folder.write(PICTURE, draw(space, trials, records, metric))
    print(f"\nvalidation figures of {len(ranked)} trials, by {metric}\n")
    columns = [metric, *(name for name in SHOWN if name != metric), "epochs", "seconds"]
    print(format_rows(columns, {_title(t, records[t.name], given): _row(records[t.name], columns) for t in ranked}))
    show_sharing(folder, trials, records)
    gain = _gain(records[best.name], records[given.name], metric)
    print(f"\nbest: {best.name}{gain}\n{folder.location}/{BEST}, {TABLE}, {PICTURE}")
    print("to go on with it, to the ranker and the test points:")
    preset, run = f"{folder.location}/{BEST}", home_of(folder, best).location
    print(f"  python jobs/train.py --preset {shlex.quote(preset)} --run {shlex.quote(run)}")


def best_first(trials: Sequence[Trial], records: Mapping[str, Record], metric: str) -> list[Trial]:
    """Those that came to their end before those that were stopped, and these before those that failed."""

    def place(trial: Trial) -> tuple[int, float]:
        record = records[trial.name]
        return ({"done": 0, "stopped": 1}.get(record.state, 2), -(record.figure(metric) or 0.0))

    return sorted(trials, key=place)


def as_csv(folder: Folder, ranked: Sequence[Trial], records: Mapping[str, Record]) -> bytes:
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    header = ["state", "epochs", "seconds", "seconds_saved", "error"]
    table.writerow(["trial", *ranked[0].values, *METRIC_NAMES, *header])
    for trial in ranked:
        record = records[trial.name]
        saved = sum(taken(home_of(folder, trial)).values())
        figures = [record.figure(metric) for metric in METRIC_NAMES]
        facts = [record.state, record.epochs, round(record.seconds, 1), round(saved, 1), record.error]
        table.writerow([trial.name, *trial.values.values(), *figures, *facts])
    return file.getvalue().encode()


def show_sharing(folder: Folder, trials: Sequence[Trial], records: Mapping[str, Record]) -> None:
    """What trials had from one another."""
    saved = [seconds for trial in trials for seconds in taken(home_of(folder, trial)).values()]
    spent = sum(records[trial.name].seconds for trial in trials)
    if saved:
        print(
            f"\ntrials took {spent:,.0f} s; {len(saved)} artifacts that one had from another spared {sum(saved):,.0f} s"
        )


def _title(trial: Trial, record: Record, given: Trial) -> str:
    remark = "" if record.state == "done" else f" ({record.state})"
    return f"{trial.name}{' (as given)' if trial is given else ''}{remark}"


def _row(record: Record, columns: Sequence[str]) -> list[float | None]:
    facts = {"epochs": float(record.epochs), "seconds": record.seconds}
    return [facts[column] if column in facts else record.figure(column) for column in columns]


def _gain(best: Record, given: Record, metric: str) -> str:
    here, there = best.figure(metric), given.figure(metric)
    if best is given:
        return f", {metric} {here:.2f}, as given"
    if here is None or there is None or given.state != "done":
        return f", {metric} {here:.2f}"
    return f", {metric} {here:.2f}, {here - there:+.2f} over {there:.2f} as given"
