"""Time of predicting texts beside the encoder's own forward on them, and where the rest goes.

    .venv/bin/python tests/benchmarks/prediction.py --run runs/apidocs

Test texts, from strings to scored labels, with the index pruned as for new texts (inference.*). Each figure is the
median over batches, measured in turn with the encoder alone, so that both see the same machine.
"""

import argparse
import statistics
from collections import defaultdict

import torch

from elias_ray import clock
from elias_ray.clock import timed
from elias_ray.encoder import phi
from elias_ray.features import psi
from elias_ray.memory import POINTS_AT_ONCE
from elias_ray.peers.columns import texts_of
from elias_ray.predictions import TOP_K
from elias_ray.predictor import load

ALONE = "encoder alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--batches", type=int, default=8, help=f"of {POINTS_AT_ONCE} texts")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    predictor = load(arguments.run)
    member, prepared = predictor.members[0], predictor.prepared
    texts = texts_of(prepared, "test")[: arguments.batches * POINTS_AT_ONCE]
    seconds: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(texts), POINTS_AT_ONCE):
        batch = texts[start : start + POINTS_AT_ONCE]
        tokens = [encoding.ids for encoding in predictor.tokenizer.encode_batch_fast(batch)]
        with timed(ALONE):
            phi(member.model.encoder, tokens, member.device)
        spent_on = clock.take()
        with timed("tokens and phi"):
            embedding_ND = predictor.embed(batch)[0]
        with timed("tf-idf"):
            psi_NF = psi(predictor.tfidf(batch), embedding_ND)
        spent_on |= clock.take()
        with timed("search, scores and best labels"):
            member.model.best_labels(torch.from_numpy(embedding_ND), TOP_K)
        inside = clock.take()
        spent_on["search, scores and best labels"] = inside.pop("search, scores and best labels")
        with timed("the same with ranker and calibration"):
            member.predict(embedding_ND, psi_NF, predictor.frequency_L)
        whole = clock.take()["the same with ranker and calibration"]
        spent_on["ranker and calibration"] = whole - spent_on["search, scores and best labels"]
        for part, spent in spent_on.items():
            seconds[part].append(spent)
        for part, spent in inside.items():
            seconds[f"  of which {part}"].append(spent)
    medians = {part: statistics.median(spent) for part, spent in seconds.items()}
    medians["in all"] = sum(spent for part, spent in medians.items() if part != ALONE and not part.startswith(" "))
    for part, spent in medians.items():
        print(f"{part:<44}{1000 * spent / POINTS_AT_ONCE:>9.3f} ms/text{spent / medians[ALONE]:>8.2f}")


if __name__ == "__main__":
    main()
