"""Where the encoder is found, and its tokenizer. Without torch, which workers that only tokenise need not import."""

import importlib.util
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from elias_ray.errors import UserError


def encoder_location(name: str) -> str:
    """`name` is a Hugging Face name, a folder, or package:NAME/FOLDER, a folder inside an installed package."""
    if not name.startswith("package:"):
        return name
    package, _, folder = name.removeprefix("package:").partition("/")
    # finds a top-level package without importing it
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"encoder.name={name}: package {package} is not installed; run `make install`")
    location = Path(spec.submodule_search_locations[0]) / folder
    if not location.is_dir():
        raise UserError(f"encoder.name={name}: package {package} has no folder '{folder}'")
    return str(location)


@lru_cache(maxsize=4)
def load_tokenizer(name: str, max_length: int) -> Tokenizer:
    """Cuts at `max_length` and does not pad. transformers takes seconds to import, so it is asked last."""
    location = encoder_location(name)
    file = Path(location) / "tokenizer.json"
    try:
        if file.is_file():
            tokenizer = Tokenizer.from_file(str(file))
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(
                location, local_files_only=Path(location).is_dir()
            ).backend_tokenizer
    except Exception as error:  # the libraries raise what they like, a bare Exception included
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"encoder.name={name}: no tokenizer found ({first_line}); "
            "give a Hugging Face name that this machine can reach, or a folder that holds the model"
        ) from None
    tokenizer.enable_truncation(max_length)
    tokenizer.no_padding()
    return tokenizer
