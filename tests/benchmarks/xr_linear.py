"""XR-Linear of libpecos on the tf-idf features of a run, beside what the run itself has reached.

    .venv/bin/python tests/benchmarks/xr_linear.py --run runs/apidocs

Same training points, same test points, same metrics. The beam is wide enough that a wider one changes nothing.
"""

import argparse
import json
import time

import numpy as np
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel

from elias_ray.artifacts import CONFIG, Folder, committed
from elias_ray.config import parse_config
from elias_ray.data import Prepared
from elias_ray.evaluation import METRICS
from elias_ray.metrics import format_table
from elias_ray.predictions import TOP_K, Predicted, new_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--beam", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    run = Folder.at(arguments.run)
    config = parse_config(run.read(CONFIG).decode(), CONFIG)
    manifest = committed(run / "prepare")
    assert manifest is not None, "not a run that was prepared"
    prepared = Prepared(run / "prepare", manifest.facts)

    started = time.monotonic()
    psi_NF = prepared.tfidf("train").astype(np.float32)
    labels_NL = prepared.labels("train").astype(np.float32)
    chain = Indexer.gen(LabelEmbeddingFactory.create(labels_NL, psi_NF, method="pifa"))
    xr_linear = XLinearModel.train(psi_NF, labels_NL, C=chain, threads=arguments.threads)
    trained = time.monotonic() - started
    predicted = xr_linear.predict(
        prepared.tfidf("test").astype(np.float32), beam_size=arguments.beam, only_topk=TOP_K, threads=arguments.threads
    ).tocsr()
    labels_NK, scores_NK = Predicted.of_lists(np.diff(predicted.indptr), predicted.indices, predicted.data)

    metrics, start = new_metrics(prepared, config.metrics), 0
    for shard, rows in prepared.shards("test").items():
        part = slice(start, start + rows)
        true, filtered = prepared.labels_of_shard(shard), prepared.filtered_of_shard(shard)
        metrics.update(labels_NK[part], scores_NK[part], true, filtered)
        start += rows
    print(f"XR-Linear: trained in {trained:.0f} s\n")
    print(format_table({"XR-Linear": metrics.result(), **json.loads(run.read(METRICS))}))


if __name__ == "__main__":
    main()
