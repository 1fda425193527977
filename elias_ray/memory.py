"""What a worker will hold in memory while it trains, before it does: bytes by the shapes of everything large.

Legend: B points of a worker, G points of all workers, T tokens of a text, D embedding size, C clusters, L labels,
E explored clusters, R edges of a row of A (kappa), K labels of a shortlist.
"""

import math
from dataclasses import dataclass

from elias_ray.shortlist import PATHS_AT_ONCE

FLOAT, LONG, INT = 4, 8, 4
GIB = 2**30
POINTS_AT_ONCE = 256  # of all workers, in a search that is not of training: each worker forms the paths of all


def points_at_once(workers: int) -> int:
    """Of each of so many workers, in one search."""
    return max(1, POINTS_AT_ONCE // workers)


@dataclass(frozen=True)
class Shapes:
    """What decides the memory of a stage."""

    workers: int
    batch_size: int  # G
    tokens: int  # T, of the longest text of a batch
    rows_ahead: int  # of the batches that are read ahead
    encoder_parameters: int
    encoder_layers: int
    encoder_heads: int
    encoder_width: int  # of the feed-forward part
    embedding_size: int  # D
    clusters: int  # C
    labels: int  # L
    row_length: int  # R
    beam: int  # b
    explored: int  # E
    shortlist: int  # K
    learns_adjacency: bool
    trains_encoder: bool
    averages: bool
    zero_stage: int
    label_bytes: int = FLOAT  # of a weight of W_L
    update_every: int = 1  # steps, of W_L
    random_labels: int = 0  # drawn at a step
    on_gpu: bool = False  # which looks at more paths at once

    @property
    def trained_by_deepspeed(self) -> int:
        """Parameters."""
        return self.encoder_parameters if self.trains_encoder else 0

    @property
    def table_C(self) -> int:
        """Bytes of W_C, with its bias, of the worker with most rows."""
        return math.ceil(self.clusters / self.workers) * (self.embedding_size + 1) * FLOAT

    @property
    def table_L(self) -> int:
        """Bytes of W_L, with its bias, of the worker with most rows."""
        return math.ceil(self.labels / self.workers) * (self.embedding_size * self.label_bytes + FLOAT)

    @property
    def moments_L(self) -> int:
        """Bytes of what its optimizer keeps of them: two moments a weight; of coarse ones a moment and a step a row."""
        if self.label_bytes == FLOAT:
            return 2 * self.table_L
        return math.ceil(self.labels / self.workers) * (FLOAT + INT + 2 * FLOAT)

    @property
    def gradient_L(self) -> int:
        """Bytes; of coarse weights only their biases' is kept."""
        return self.table_L if self.label_bytes == FLOAT else math.ceil(self.labels / self.workers) * FLOAT

    @property
    def explored_here(self) -> float:
        """Of the clusters that a point explores, those of one worker, of the point that has most of them there."""
        mean = self.explored / self.workers
        spread = math.sqrt(mean * (1 - 1 / self.workers))
        return min(self.explored, mean + 2.5 * spread)

    @property
    def edges(self) -> int:
        """Entries of A of the worker with most rows."""
        return math.ceil(self.clusters / self.workers) * self.row_length


def plan(shapes: Shapes) -> dict[str, int]:
    """Bytes of one worker, the one with most rows, by what they are for."""
    s = shapes
    points = math.ceil(s.batch_size / s.workers)
    trained, edges = s.trained_by_deepspeed, s.edges

    def split_from(stage: int) -> int:
        return s.workers if s.zero_stage >= stage else 1

    # Of a token what backward needs of every layer: some vectors of size D and of the feed-forward's and the attention,
    # as measured. A stage that does not train phi finds its embeddings made.
    attention = 2 * s.encoder_heads * s.tokens
    per_token = s.encoder_layers * (11 * s.embedding_size + 3 * s.encoder_width + attention)
    activations = points * s.tokens * per_token if s.trains_encoder else 0
    # Of a row read ahead, three copies: as it was written, sent, and laid out in batches.
    row_ahead = s.tokens * LONG if s.trains_encoder else s.embedding_size * FLOAT
    drawn = math.ceil(min(s.random_labels, s.labels) / s.workers)
    searched = max(s.batch_size, POINTS_AT_ONCE)
    explored = searched * s.explored_here
    paths = min(explored * s.row_length, PATHS_AT_ONCE["cuda" if s.on_gpu else "cpu"])
    explored_rows = min(math.ceil(s.clusters / s.workers), explored)
    lines = {
        "phi": FLOAT * s.encoder_parameters,
        "W_C, its rows here": s.table_C,
        "W_L, its rows here": s.table_L,
        "A, labels and weights, its rows here": (INT + FLOAT) * edges,
        "gradients of phi": FLOAT * trained // split_from(2),
        "AdamW of phi": (2 if s.zero_stage == 0 else 3) * FLOAT * trained // split_from(1),
        "gradient and AdamW of W_C": 3 * s.table_C,
        "gradient and AdamW of W_L": s.gradient_L + s.moments_L,
        "gradient and AdamW of A": 3 * FLOAT * edges if s.learns_adjacency else 0,
        "averages of the weights": FLOAT * trained + s.table_C + s.table_L if s.averages else 0,
        "parents of all labels": (LONG + s.workers * (LONG + FLOAT)) * s.labels,
        "cluster scores of a batch": s.batch_size * math.ceil(s.clusters / s.workers) * (LONG + 4 * FLOAT),
        "activations of phi": FLOAT * activations,
        "batches read ahead": 3 * row_ahead * s.rows_ahead,
        # Labels, log scores, costs, the best of them, and copies of these on the way; as measured.
        "paths of some points": paths * 8 * LONG,
        # As they are, their softmax, and copies of these.
        "rows of A that a batch explores": explored_rows * s.row_length * 4 * FLOAT,
        # Labels, paths and log scores, once by parts and once as a whole.
        "best labels of all points by their owner": searched * s.shortlist * 2 * (2 * LONG + FLOAT),
        # And what is found of them, with gradients; as measured.
        "shortlists of a batch": points * s.shortlist * 28 * (LONG + FLOAT),
        # Rows, points and gradients of coarse weights' steps, and their embeddings; of some rows all in order.
        "gradients of W_L that wait": (
            s.update_every * math.ceil(s.batch_size * s.shortlist / s.workers) * (2 * INT + FLOAT)
            + 2 * s.update_every * s.batch_size * s.embedding_size * FLOAT
            if s.label_bytes < FLOAT
            else 0
        ),
        # Their weights, with gradients; scores, with what becomes of them.
        "labels drawn at random": FLOAT * drawn * (3 * s.embedding_size + 4 * s.batch_size),
        "Python, torch, Ray": int(0.6 * GIB),
    }
    return {name: int(size) for name, size in lines.items() if size}


def of_a_checkpoint(shapes: Shapes) -> tuple[int, int]:
    """Bytes of parameters, moments and averages: what all workers have, and the rows of one of them."""
    s = shapes
    averaged = 4 if s.averages else 3
    rows = averaged * s.table_C + (averaged - 2) * s.table_L + s.moments_L
    rows += (INT + (3 if s.learns_adjacency else 1) * FLOAT) * s.edges
    return averaged * FLOAT * s.trained_by_deepspeed + LONG * s.labels, rows  # with the parents of labels


def sent(shapes: Shapes, positives: int) -> dict[str, int]:
    """Bytes that a worker sends to others in a step, with so many positives of the point that has most of a batch.

    Without GPUs or with a fast network it matters little; what matters is that nothing of it grows with L or C.
    """
    s = shapes
    others, points = s.workers - 1, s.batch_size / s.workers
    # A number of every point to all; the best of an owner and the parents home; in backward the explored to all.
    clusters = others * FLOAT * s.batch_size + others * points * (s.beam + s.explored + positives) * (INT + FLOAT)
    explored = others * points * (s.explored * (INT + FLOAT) + positives * INT)
    candidates = others * points * (s.shortlist + positives) * (INT + FLOAT) + others * points * s.shortlist * INT
    embeddings = others * points * s.embedding_size * FLOAT * (2 if s.trains_encoder else 1)
    # Of what is asked of all owners, all but an s.workers-th part leaves: labels there, logits and gradients.
    logits = others / s.workers * points * s.shortlist * (INT + 2 * FLOAT)
    edges = others / s.workers * points * (s.shortlist + positives) * (LONG + 2 * FLOAT)
    lines = {
        "cluster scores, and their gradients": clusters,
        "explored clusters and positives": explored,
        "candidates for the shortlists": candidates,
        "embeddings, and their gradients": embeddings,
        "labels, logits and gradients": logits,
        "edges of A, scores and gradients": edges if s.learns_adjacency else 0,
        "gradients of phi": 2 * others / s.workers * FLOAT * s.trained_by_deepspeed,
    }
    return {name: int(size) for name, size in lines.items() if size}


def show(lines: dict[str, int], available: int) -> str:
    total = sum(lines.values())
    text = [f"  {name:<40}{size / GIB:>10.3f} GiB" for name, size in lines.items()]
    text.append(f"  {'in all, of ' + format(available / GIB, '.1f') + ' GiB':<40}{total / GIB:>10.3f} GiB")
    return "\n".join(text)
