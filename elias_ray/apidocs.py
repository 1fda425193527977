"""The default dataset, `apidocs`: which names a Python function calls, from what its docstring says.

It is made from the packages that requirements.txt installed: their files are parsed, never imported, and nothing
is downloaded. One row is one function. Its text is the first paragraph of its docstring; its labels are the bare
names of what it calls: `c` for `a.b.c(...)`, since what `a.b` is cannot be known without running it. Functions of the
packages' own tests are rows too: they say what is done and call the public names.

The rows depend on the versions of PACKAGES, on the grammar of the Python version, and on the seed alone: files are
taken and results merged in a fixed order, and a hash of the text decides which split it goes to.
"""

import ast
import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import ray
from tqdm import tqdm

from elias_ray.artifacts import FileEntry, Folder
from elias_ray.errors import UserError

# All are requirements, or requirements of requirements, to run this project: none is installed for this alone.
# Of two functions with the same text, in two packages, the earlier package's gives the labels.
PACKAGES = (
    "torch", "transformers", "ray", "deepspeed", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "libpecos",
    "sympy", "networkx", "mpmath", "datasets", "huggingface-hub", "accelerate", "peft", "pydantic", "narwhals",
    "aiohttp", "requests", "urllib3", "anyio", "fsspec", "smart-open", "joblib", "multiprocess", "dill", "psutil",
    "protobuf", "grpcio", "google-auth", "google-api-core", "opencensus", "prometheus-client", "jinja2", "pygments",
    "rich", "click", "attrs", "packaging", "platformdirs", "distlib", "setuptools",
)  # fmt: skip

# Left out: what may differ between builds of one version (CUDA or CPU, ...), and copies of other projects.
EXCLUDED_FILES = frozenset(
    {"torch/version.py", "numpy/__config__.py", "scipy/__config__.py", "deepspeed/git_version_info_installed.py"}
)
EXCLUDED_DIRECTORIES = frozenset({"generated", "_vendor", "thirdparty_files"})

MIN_WORDS = 4  # of a text
MAX_LABEL_SHARE = 0.02  # of the rows; a name on more of them (len, append, ...) says nothing about the text
MIN_LABEL_ROWS = 2  # a name called by one function only cannot be learned from one text and asked of another
TEST_SHARE = 0.15
TASKS = 48  # a few per CPU of a usual machine, so that the last one does not keep the others waiting

UNDERLINE = re.compile(r"[-=~^*]{3,}")  # makes the line above it a heading
SECTION = re.compile(
    r""">>>\ |\.\.\ |@param\ |:[a-z]+(\ [^:`]*)?:(?!`)  # doctest, directive, field; but not a role, :class:`Row`
    |(Args|Arguments|Parameters|Params|Attributes|Inputs?|Outputs?|Returns?|Yields?|Raises|Examples?|Usage|Notes?)::?$
    |\*{0,2}\w+\ \(.*\):  # a parameter with its type""",
    re.VERBOSE,
)


class SourceFile(NamedTuple):
    """A .py file of an installed package; the path is within the package, so that any node can find its own copy."""

    package: str
    path: str
    size: int  # bytes


class Row(NamedTuple):
    text: str
    labels: tuple[str, ...]  # sorted, unique


@dataclass(frozen=True)
class Built:
    """What `build` wrote, and from what."""

    written: tuple[FileEntry, ...]
    rows: int
    files: int
    skipped_files: tuple[str, ...]  # those this Python cannot parse


def build(
    folder: Folder,
    seed: int,
    packages: Sequence[str] = PACKAGES,
    tasks: int = TASKS,
) -> Built:
    """Write train.jsonl and test.jsonl, a {"text": str, "labels": [str, ...]} per line, into the folder.

    Needs `ray.init`; `tasks` changes the time it takes and not a byte of what is written.
    """
    files = source_files(packages)
    parse = ray.remote(scheduling_strategy="SPREAD")(parse_files)
    found: list[Row] = []
    skipped: list[str] = []
    groups = [parse.remote(group) for group in similar_groups(files, tasks)]
    for group in tqdm(groups, desc="apidocs: parse packages", unit=" groups", mininterval=1):
        rows_of_group, skipped_of_group = ray.get(group)
        found += rows_of_group
        skipped += skipped_of_group

    rows = with_useful_labels(first_of_each_text(found))
    train, test = split(rows, seed)
    written = [
        folder.write(name, "".join(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in part).encode())
        for name, part in (("train.jsonl", train), ("test.jsonl", test))
    ]
    return Built(tuple(written), len(rows), len(files), tuple(skipped))


def source_files(packages: Sequence[str]) -> list[SourceFile]:
    """The .py files each package lists as its own, by package in the order given and then by path."""
    files = []
    for package in packages:
        try:
            listed = metadata.distribution(package).files
        except metadata.PackageNotFoundError:
            listed = None
        if not listed:
            raise UserError(
                f"the apidocs dataset is made from the installed package {package!r}, which is not installed or does "
                "not list its files: run `make install`"
            )
        for file in sorted(listed, key=lambda file: file.as_posix()):
            outside = file.parts[0] == ".."  # scripts that were installed into bin/
            excluded = file.as_posix() in EXCLUDED_FILES or not EXCLUDED_DIRECTORIES.isdisjoint(file.parts)
            if file.suffix == ".py" and not outside and not excluded:
                files.append(SourceFile(package, file.as_posix(), file.size or 0))
    return files


def similar_groups(files: Sequence[SourceFile], groups: int) -> list[list[SourceFile]]:
    """Cut the files, in their order, into at most `groups` runs of about the same number of bytes, none empty."""
    total = sum(file.size + 1 for file in files)
    runs: list[list[SourceFile]] = [[] for _ in range(groups)]
    before = 0
    for file in files:
        runs[before * groups // total].append(file)
        before += file.size + 1
    return [run for run in runs if run]


def parse_files(files: Iterable[SourceFile]) -> tuple[list[Row], list[str]]:
    """The rows of all files, in order, and the paths of those that could not be parsed."""
    rows: list[Row] = []
    skipped = []
    for file in files:
        source = Path(str(metadata.distribution(file.package).locate_file(file.path))).read_bytes()
        try:
            rows += rows_of_source(source)
        except (SyntaxError, ValueError, RecursionError):  # not this Python's grammar, not text, nested too deep
            skipped.append(file.path)
    return rows, skipped


def rows_of_source(source: str | bytes) -> list[Row]:
    """A row for each function that has a text and calls something, in the order of the source.

    A call belongs to the innermost function around it that has a text, and to no other: so a decorator's undocumented
    `wrapper` speaks for the decorator. Decorators, defaults and annotations belong to what is around the function.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escape sequences in other people's strings
        module = ast.parse(source)

    functions: list[tuple[str, set[str]]] = []
    outside: set[str] = set()  # calls under no function with a text
    pending: list[tuple[ast.AST, set[str]]] = [(module, outside)]  # a stack: some expressions are too deep to recurse
    while pending:
        node, calls = pending.pop()
        inner_calls = calls
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = first_paragraph(ast.get_docstring(node) or "")
            if len(text.split()) >= MIN_WORDS:
                inner_calls = set()
                functions.append((text, inner_calls))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                calls.add(node.func.attr)
            elif isinstance(node.func, ast.Name):
                calls.add(node.func.id)
        for child in reversed(list(ast.iter_child_nodes(node))):
            if isinstance(child, ast.stmt):
                pending.append((child, inner_calls))
            elif calls is not outside or not isinstance(child, ast.expr):  # an expression outside leads to no function
                pending.append((child, calls))
    return [Row(text, tuple(sorted(calls))) for text, calls in functions if calls]


def first_paragraph(docstring: str) -> str:
    """On one line, up to the first blank line or section; empty if there is none, or if it cannot be printed."""
    lines: list[str] = []
    for line in map(str.strip, docstring.strip().splitlines()):
        if UNDERLINE.fullmatch(line):
            lines = lines[:-1]
            break
        if not line or SECTION.match(line):
            break
        lines.append(line)
    text = " ".join(" ".join(lines).split())
    return text if text.isprintable() else ""  # lone surrogates could not be written as UTF-8


def first_of_each_text(rows: Iterable[Row]) -> list[Row]:
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.text, row)
    return list(first.values())


def with_useful_labels(rows: Sequence[Row]) -> list[Row]:
    """The rows less the labels on too many or too few of them, less the rows that then have none.

    A row that goes had no label left to count, so every label that stays is on MIN_LABEL_ROWS rows or more.
    """
    counts = Counter(label for row in rows for label in row.labels)
    useful = {label for label, count in counts.items() if MIN_LABEL_ROWS <= count <= MAX_LABEL_SHARE * len(rows)}
    kept = (Row(row.text, tuple(label for label in row.labels if label in useful)) for row in rows)
    return [row for row in kept if row.labels]


def split(rows: Iterable[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Training and test rows, shuffled. Seed and text alone decide a row's side, whatever other rows there are."""
    draws = sorted((hashlib.sha256(f"{seed} {row.text}".encode()).digest(), row) for row in rows)
    end_of_test = int(TEST_SHARE * 2**64).to_bytes(8, "big")
    train = [row for draw, row in draws if draw >= end_of_test]
    test = [row for draw, row in draws if draw < end_of_test]
    return train, test
