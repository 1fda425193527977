"""The encoder phi: where it is found and its tokenizer."""

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from elias_ray.errors import UserError


def encoder_location(name: str) -> str:
    """`name` is a Hugging Face name, a folder, or package:NAME/FOLDER, a folder inside an installed package."""
    if not name.startswith("package:"):
        return name
    package, _, folder = name.removeprefix("package:").partition("/")
    spec = importlib.util.find_spec(package)  # finds a top-level package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"encoder.name={name}: package {package} is not installed; run `make install`")
    location = Path(spec.submodule_search_locations[0]) / folder
    if not location.is_dir():
        raise UserError(f"encoder.name={name}: package {package} has no folder '{folder}'")
    return str(location)


@lru_cache(maxsize=1)
def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer  # seconds to import: only where tokens are made

    location = encoder_location(name)
    try:
        return AutoTokenizer.from_pretrained(location, local_files_only=Path(location).is_dir())
    except (OSError, ValueError) as error:
        first_line = str(error).splitlines()[0]
        raise UserError(
            f"encoder.name={name}: no tokenizer found ({first_line}); "
            "give a Hugging Face name with network access, or a folder that holds the model"
        ) from None
