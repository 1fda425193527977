"""A trained run as one portable folder: what prediction needs and nothing else, readable on any machine.

It is laid out like a run, so `elias_ray.load` reads both in the same way. Every file is safetensors, JSON, Parquet or
text; nothing in it is code.
"""

import json

from elias_ray.artifacts import CONFIG, Folder, committed, committing
from elias_ray.config import Config
from elias_ray.data import LABELS, TERMS, Prepared
from elias_ray.encoder import Encoder
from elias_ray.errors import UserError
from elias_ray.evaluation import METRICS, TITLES
from elias_ray.metrics import format_table
from elias_ray.plan import ENCODER, Plan, open_run
from elias_ray.tokenizer import load_tokenizer

CARD = "README.md"


def export(location: str, destination: Folder) -> None:
    members = open_run(location)
    run, config = members[0].run, members[0].config
    if not run.exists(METRICS):
        raise UserError(f"{run.path} has no {METRICS}; run jobs/evaluate.py --run {run.path} first")
    if destination.files():
        raise UserError(f"{destination.path} is not empty; give a new folder")
    prepared = members[0].prepared
    with committing(destination / "prepare") as copy:
        for name in (LABELS, TERMS):
            copy.files[name] = (destination / "prepare").write(name, prepared.folder.read(name))
        copy.facts.update({key: value for key, value in prepared.facts.items() if key not in ("data", "input_files")})
    for member in members:
        for artifact in artifacts_of(member):
            copy_artifact(artifact, destination / artifact.path.removeprefix(run.path).lstrip("/"))
    encoder = Encoder.of(config.encoder, with_weights=False)
    tokenizer = load_tokenizer(config.encoder.name, config.encoder.max_length)
    (destination / ENCODER).write("config.json", encoder.transformer.config.to_json_string().encode())
    (destination / ENCODER).write("tokenizer.json", tokenizer.to_str().encode())
    destination.write(METRICS, run.read(METRICS))
    destination.write(CARD, model_card(run, config, prepared).encode())
    destination.write(CONFIG, run.read(CONFIG))  # last: without it the folder is no model


def artifacts_of(member: Plan) -> list[Folder]:
    model = committed(member.ranker / "model")
    assert model is not None
    blocks = [member.ranker / "blocks" / name for name in model.facts["blocks"]]
    return [member.model, member.ranker / "model", *blocks, member.calibration / "model"]


def copy_artifact(source: Folder, destination: Folder) -> None:
    """The files that predicting needs, each checked on the way."""
    manifest = committed(source)
    assert manifest is not None
    with committing(destination) as copy:
        for name, entry in manifest.files.items():
            if not name.endswith(".parquet"):  # q of the run's own points
                copy.files[name] = destination.write(name, source.read_checked(entry))
        copy.facts.update(manifest.facts)


def model_card(run: Folder, config: Config, prepared: Prepared) -> str:
    rows = json.loads(run.read(METRICS))
    table = format_table({TITLES[name]: row for name, row in rows.items()})
    facts, splits = prepared.facts, prepared.facts["splits"]
    return f"""# Text to labels: {prepared.num_labels:,} labels

An ELIAS model (End-to-end Learning to Index and Search, NeurIPS 2022), trained with elias_ray.

```python
import elias_ray
model = elias_ray.load("PATH OF THIS FOLDER")
model.predict(["a text"], top_k=5)
```

Trained on {splits["train"]["points"]:,} texts with {splits["train"]["labels"] / splits["train"]["points"]:.1f} labels
each, cut at {config.encoder.max_length} tokens; calibrated on {splits["validation"]["points"]:,} others. Encoder:
`{config.encoder.name}`. Members: {config.ensemble.members}. Data format: {facts["format"]}.

On {splits["test"]["points"]:,} test texts, in per cent:

```
{table}
```

Files: `config.yaml` (all settings), `prepare/labels.parquet` (label names and training frequencies),
`prepare/terms.parquet` (words of the tf-idf), `{ENCODER}/` (shape and tokenizer of the encoder), and of each member
`stage2/model/` (encoder, W_C, A, W_L as safetensors), `ranker/` (linear classifiers), `calibration/` (decision tree).
"""
