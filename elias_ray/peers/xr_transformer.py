"""XR-Transformer of libpecos: the encoder fine-tuned level by level of a tree of labels, then linear classifiers on
[tf-idf, phi(x)]. Its own settings, but for as many steps of fine-tuning as the time allows.

Needs transformers 4 (see PEERS); libpecos takes the [CLS] vector, whatever pooling the encoder was made for.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xtransformer.matcher import TransformerMatcher
from pecos.xmc.xtransformer.model import XTransformer
from pecos.xmc.xtransformer.module import MLProblemWithText
from torch import Tensor

from elias_ray.data import Prepared
from elias_ray.formats.source import SplitName
from elias_ray.peers import Case
from elias_ray.peers.columns import texts_of, tokens_of
from elias_ray.peers.xr_linear import BEAM, POINTS_AT_ONCE
from elias_ray.predictions import TOP_K
from elias_ray.tokenizer import encoder_location

BATCH, MOST_EPOCHS = 32, 5  # of a level, libpecos' own number
READERS = 1  # processes that make batches; libpecos divides by it
ENCODER = 0.5  # part of the time for what is counted beforehand; heads of a level and linear classifiers are not
LONG_ENOUGH = 0.99  # texts that are not cut


@dataclass(frozen=True)
class XRTransformer:
    case: Case
    model: XTransformer
    remark: str

    def predict(self) -> sp.csr_matrix:
        prepared = self.case.member.prepared
        order_N = lengths_of(prepared, "test").argsort(kind="stable")
        psi_NF = prepared.tfidf("test").astype(np.float32)[order_N]
        settings = {
            "batch_size": BATCH,
            "batch_gen_workers": READERS,
            "max_pred_chunk": POINTS_AT_ONCE,
            "threads": self.case.threads,
        }
        texts = texts_of(prepared, "test")
        texts = [texts[row] for row in order_N]
        scores_NL = self.model.predict(texts, psi_NF, beam_size=BEAM, only_topk=TOP_K, **settings).tocsr()
        return scores_NL[order_N.argsort()]

    def save(self, folder: Path) -> None:
        self.model.save(str(folder))


def train(case: Case) -> XRTransformer:
    prepared, config, started = case.member.prepared, case.member.config, time.monotonic()
    logging.basicConfig(format="XR-Transformer, %(asctime)s: %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("pecos").setLevel(logging.INFO)  # its progress
    torch.set_num_threads(case.threads)
    torch.manual_seed(config.seed)
    lengths_N = lengths_of(prepared, "train")
    order_N = lengths_N.argsort(kind="stable")  # to embed together what needs little padding; training draws its own
    psi_NF, labels_NL = (
        matrix.astype(np.float32)[order_N] for matrix in (prepared.tfidf("train"), prepared.labels("train"))
    )
    chain = Indexer.gen(LabelEmbeddingFactory.create(labels_NL, psi_NF, method="pifa"))
    length = int(np.quantile(lengths_N, LONG_ENOUGH, method="higher"))
    location = encoder_location(config.encoder.name)
    levels = sum(level.shape[0] <= XTransformer.TrainParams.max_match_clusters for level in chain)
    encoder = TransformerMatcher.download_model(location).text_encoder
    leave_out_padding(type(encoder))
    drawn_SB = np.random.default_rng(config.seed).choice(lengths_N.clip(max=length), (100, BATCH))
    lengths = {True: drawn_SB.max(axis=1).mean(), False: lengths_N.clip(max=length).mean()}
    steps = steps_in_time(case, started, encoder, lengths, levels)
    parameters = XTransformer.TrainParams.from_dict({}, recursive=True)
    matcher = parameters.matcher_params_chain
    matcher.model_shortcut, matcher.batch_size, matcher.max_steps = location, BATCH, steps
    matcher.batch_gen_workers, matcher.save_steps, matcher.warmup_steps = READERS, steps + 1, steps // 10
    questions = XTransformer.PredParams.from_dict({}, recursive=True)
    questions.matcher_params_chain.truncate_length = length
    texts = texts_of(prepared, "train")
    problem = MLProblemWithText([texts[row] for row in order_N], labels_NL, X_feat=psi_NF)
    model = XTransformer.train(
        problem, clustering=chain, train_params=parameters, pred_params=questions, threads=case.threads
    )
    epochs = steps * BATCH / labels_NL.shape[0]
    return XRTransformer(case, model, f"{levels} levels, {epochs:.2g} epochs each, {length} tokens")


def leave_out_padding(encoder_class: Any) -> None:
    """libpecos pads all texts to one length; what is padding in all texts of a batch costs time and changes nothing."""
    forward = encoder_class.forward

    def shorter(self: Any, input_ids: Tensor, attention_mask: Tensor, **others: Any) -> Any:
        longest = int(attention_mask.sum(dim=1).max())
        assert not attention_mask[:, longest:].any(), "padding stands behind the text"
        if others.get("token_type_ids") is not None:
            others["token_type_ids"] = others["token_type_ids"][:, :longest]
        return forward(self, input_ids=input_ids[:, :longest], attention_mask=attention_mask[:, :longest], **others)

    encoder_class.forward = shorter


def lengths_of(prepared: Prepared, split: SplitName) -> npt.NDArray[np.int64]:
    """Of every text, in tokens."""
    return np.array([len(ids) for ids in tokens_of(prepared, split)])


def steps_in_time(case: Case, started: float, encoder: Any, lengths: dict[bool, float], levels: int) -> int:
    """Of each level; a level also embeds all training points once, and in the end there are the test points.

    `lengths`: of the texts of a batch that is trained on, with padding; of one that is embedded.
    """
    prepared = case.member.prepared
    points = prepared.num_rows("train")
    optimizer = torch.optim.AdamW(encoder.parameters())
    seconds = {}
    for trains in (True, False, True, False):  # the second time counts
        tokens = torch.full((BATCH, round(lengths[trains])), 1000)
        began = time.monotonic()
        with torch.set_grad_enabled(trains):
            embedding = encoder(input_ids=tokens, attention_mask=torch.ones_like(tokens))["pooled_output"]
        if trains:
            embedding.sum().backward()
            optimizer.step()
        seconds[trains] = time.monotonic() - began
    embedding_seconds = (levels * points + prepared.num_rows("test")) / BATCH * seconds[False]
    left = ENCODER * 60 * case.minutes - (time.monotonic() - started) - embedding_seconds
    return max(10, min(int(left / levels / seconds[True]), MOST_EPOCHS * points // BATCH))
