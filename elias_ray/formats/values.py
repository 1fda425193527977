"""Single values out of lines: each is read or refused with its file, line and value."""

import json
import math
from typing import Any

from elias_ray.errors import UserError

MOST_DIGITS = 18  # of a label or row number: more cannot be one, and int() of thousands is an error of its own


def decode(line: bytes, file: str, number: int) -> str:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")  # a byte-order mark
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(
            f"{file}:{number}: byte 0x{byte:02x} at column {error.start + 1} is not UTF-8; convert the file to UTF-8"
        ) from None


def parse_id(text: str, count: int, what: str, file: str, number: int) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{file}:{number}: '{clip(text)}' is not a {what} number")
    if len(text) > MOST_DIGITS or int(text) >= count:
        raise UserError(f"{file}:{number}: {what} {clip(text)} is out of range, allowed 0 to {count - 1}")
    return int(text)


def parse_number(text: str, what: str, file: str, number: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{file}:{number}: {what} '{clip(text)}' is not a number") from None


def check_relevance(value: float, file: str, number: int) -> float:
    try:
        usable = math.isfinite(value) and value >= 0
    except OverflowError:  # an integer beyond every float
        usable = False
    if not usable:
        raise UserError(f"{file}:{number}: relevance {clip(str(value))}, expected a finite, non-negative number")
    return value


def parse_object(line: str, file: str, number: int) -> dict[str, Any]:
    """A JSON object on a line."""
    try:
        value = json.loads(line)
        if "\\ud" in line.lower():  # half of a surrogate pair is valid JSON and no valid text
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise UserError(f"{file}:{number}: {half} is half of a surrogate pair: '{clip(line)}'") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}:{number}: not a JSON object: {clip(str(error))}: '{clip(line)}'") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}:{number}: '{clip(line)}', expected a JSON object")
    return value


def clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
