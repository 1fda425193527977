"""Last steps of a run: p and q of each member calibrated, and the members' scores averaged."""

from collections.abc import Sequence

import numpy as np

from elias_ray.artifacts import Folder, committed, committing, key_of
from elias_ray.calibration import Calibration, fit_calibration
from elias_ray.ensemble import average
from elias_ray.plan import Plan
from elias_ray.predictions import Predicted, read_predicted, read_predictions, write_predicted

TREE = "tree.json"


def calibrate(plan: Plan) -> None:
    """A tree fitted on the validation points, and by it the final scores of the test points; unless they are there."""
    title, made_from = plan.title_of("calibration"), key_of(plan.ranked("validation"))
    if committed(plan.calibration / "model", made_from) is None:
        p_Q, q_Q, frequency_Q, positive_Q = validation_pairs(plan)
        calibration = fit_calibration(p_Q, q_Q, frequency_Q, positive_Q, plan.config.calibration, plan.config.seed)
        with committing(plan.calibration / "model", made_from) as manifest:
            manifest.files[TREE] = (plan.calibration / "model").write(TREE, calibration.to_json())
            manifest.facts.update(pairs=len(p_Q), positives=int(positive_Q.sum()), nodes=len(calibration.left))
        print(f"{title}: {len(p_Q):,} pairs of validation points, a tree of {len(calibration.left)} nodes")
    folder, key = plan.calibrated("test"), key_of(plan.calibration / "model", plan.ranked("test"))
    if committed(folder, key) is not None:
        print(f"{title}: done before ({folder.path})")
        return
    calibration, frequency_L = read_calibration(plan.calibration), plan.prepared.label_frequency_L
    with committing(folder, key) as manifest:
        for shard in plan.prepared.shards("test"):
            lists = read_predictions(plan.ranked("test"), shard, ("p", "q"))
            scores_Q = calibration.scores(lists.values_Q["p"], lists.values_Q["q"], frequency_L[lists.labels_Q])
            best = Predicted.of_lists(lists.counts_N, lists.labels_Q, scores_Q).best()
            entry = write_predicted(folder, plan.prepared, shard, best)
            manifest.files[entry.name] = entry


def validation_pairs(plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """p, q, frequency of the label and whether it is a positive, of every pair that counts. (Q,) each"""
    prepared, parts = plan.prepared, []
    for shard in prepared.shards("validation"):
        lists = read_predictions(plan.ranked("validation"), shard, ("p", "q"))
        places = (lists.rows_Q, lists.labels_Q)
        positive_Q, filtered_Q = (
            np.asarray(matrix[places]).ravel() > 0
            for matrix in (prepared.labels_of_shard(shard), prepared.filtered_of_shard(shard))
        )
        frequency_Q = prepared.label_frequency_L[lists.labels_Q]
        columns = (lists.values_Q["p"], lists.values_Q["q"], frequency_Q, positive_Q)
        parts.append([column[~filtered_Q] for column in columns])
    p_Q, q_Q, frequency_Q, positive_Q = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return p_Q, q_Q, frequency_Q, positive_Q


def read_calibration(folder: Folder) -> Calibration:
    manifest = committed(folder / "model")
    assert manifest is not None, f"{folder.path} holds no calibration"
    return Calibration.from_json((folder / "model").read_checked(manifest.files[TREE]))


def unite(folder: Folder, members: Sequence[Plan]) -> None:
    """The test predictions of all members as one; unless they are there."""
    prepared = members[0].prepared
    predictions = [member.calibrated("test") for member in members]
    made_from = key_of(*predictions)
    if committed(folder, made_from) is not None:
        print(f"ensemble: done before ({folder.path})")
        return
    with committing(folder, made_from) as manifest:
        for shard in prepared.shards("test"):
            united = average([read_predicted(member, shard) for member in predictions])
            entry = write_predicted(folder, prepared, shard, united)
            manifest.files[entry.name] = entry
    print(f"ensemble: {len(members)} members")
