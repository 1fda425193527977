"""apidocs: rows of small sources written by hand, the filters, the split, and that parallelism changes no byte."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from elias_ray import apidocs
from elias_ray.apidocs import Row, SourceFile
from elias_ray.artifacts import Folder


def rows(source: str) -> list[Row]:
    return apidocs.rows_of_source(dedent(source))


@pytest.mark.parametrize(
    ("docstring", "text"),
    [
        ("Sort the given list.", "Sort the given list."),
        ("\n\n    Sort the list\n\tand  return   it.\n\n    More is not read.", "Sort the list and return it."),
        ("Sort the list.\n:param key: the order", "Sort the list."),
        ("Sort the list.\n@param key the order", "Sort the list."),
        ("Sort the list.\nArgs:\n    key: the order", "Sort the list."),
        ("Sort the list.\n>>> sort([2, 1])", "Sort the list."),
        ("Sort the list.\n.. versionadded:: 2", "Sort the list."),
        ("Sort the list.\nParameters\n----------\nkey : the order", "Sort the list."),
        ("Sort with\n:func:`sorted` and return it.", "Sort with :func:`sorted` and return it."),
        ("Returns the sorted list.", "Returns the sorted list."),
        ("Returns\n-------\nthe sorted list", ""),
        ("Returns:\n    the sorted list", ""),
        ("key (`Callable[[int], int]`, *optional*):\n    The order.", ""),
        ("Naïve 排序 of lists", "Naïve 排序 of lists"),
        ("A lone \ud800 surrogate here.", ""),
        ("A bell \a rings here.", ""),
        (" \n ", ""),
        ("", ""),
    ],
)
def test_first_paragraph(docstring: str, text: str) -> None:
    assert apidocs.first_paragraph(docstring) == text


def test_labels_are_the_bare_names_called_sorted_and_unique() -> None:
    source = '''
        def f(x):
            """Load the whole table."""
            a.b.read(open(x)); self.read(); table[0](1); maker()(2)
            print(f"{join(x)!r:>{width(x)}}", *[strip(y) for y in x if y], key=lambda y: lower(y))
            with closing(x) as y: return (await_ := y).close
    '''
    expected = ("closing", "join", "lower", "maker", "open", "print", "read", "strip", "width")
    assert rows(source) == [Row("Load the whole table.", expected)]


def test_functions_methods_and_coroutines_are_rows_in_the_order_of_the_source() -> None:
    source = '''
        try:
            import fast
        except ImportError:
            def first():
                """One in a branch."""
                one()
        class Outer:
            """A class has no row."""
            field = made()
            async def second(self):
                """Two is a coroutine."""
                async with enter():
                    await two()
            class Inner:
                @property
                def third(self):
                    """Three is a property."""
                    try: pass
                    except Error: three()
        def fourth(x):
            """Four has a match."""
            match x:
                case Point(): four()
        def fifth():
            """Five words but no call."""
    '''
    assert rows(source) == [
        Row("One in a branch.", ("one",)),
        Row("Two is a coroutine.", ("enter", "two")),
        Row("Three is a property.", ("three",)),
        Row("Four has a match.", ("four",)),
    ]


def test_a_call_belongs_to_the_innermost_function_that_has_a_text() -> None:
    source = '''
        def retry(f):
            """Try again when it fails."""
            @wraps(f)
            def wrapper(x=default()):
                sleep()
                def log():
                    """Write down each failure."""
                    write()
            class Local:
                def method(self) -> "A":
                    """Too short."""
                    inner()
            return register(wrapper)
    '''
    assert rows(source) == [
        Row("Try again when it fails.", ("default", "inner", "register", "sleep", "wraps")),
        Row("Write down each failure.", ("write",)),
    ]


def test_decorators_defaults_and_annotations_are_not_calls_of_the_function() -> None:
    source = '''
        @cache(maxsize=size())
        def f(x: Field(gt=0) = default()) -> result():
            """Count what is there."""
            count()
    '''
    assert rows(source) == [Row("Count what is there.", ("count",))]


def test_four_words_make_a_text() -> None:
    assert rows('def f():\n "Only three words"\n g()') == []
    assert rows('def f():\n "Now it is four"\n g()') == [Row("Now it is four", ("g",))]


def test_an_expression_deeper_than_the_recursion_limit() -> None:
    terms = sys.getrecursionlimit() + 200
    source = 'def f():\n "Add up many terms."\n return ' + " + ".join(f"g{i}()" for i in range(terms))
    assert len(rows(source)[0].labels) == terms


def test_the_first_of_each_text_wins() -> None:
    found = [Row("a", ("x",)), Row("b", ("y",)), Row("a", ("z",))]
    assert apidocs.first_of_each_text(found) == [Row("a", ("x",)), Row("b", ("y",))]


def test_labels_on_too_many_or_too_few_rows_go_and_rows_without_labels_with_them() -> None:
    first_rows = {
        "five": 5,
        "four": 4,
        "two": 2,
        "one": 1,
    }  # each label is on the first rows of 200, of which 2 % are 4
    found = [Row(f"text {i}", tuple(label for label, rows in first_rows.items() if i < rows)) for i in range(200)]
    assert apidocs.with_useful_labels(found) == [
        Row("text 0", ("four", "two")),
        Row("text 1", ("four", "two")),
        Row("text 2", ("four",)),
        Row("text 3", ("four",)),
    ]


ROWS = [Row(f"text number {i}", ("x",)) for i in range(2000)]


def test_split_is_a_shuffle_by_seed_and_text() -> None:
    train, test = apidocs.split(ROWS, seed=7)
    assert sorted(train + test) == sorted(ROWS)
    assert abs(len(test) / len(ROWS) - 0.15) < 0.03
    assert train != sorted(train, key=ROWS.index)
    assert apidocs.split(ROWS[::-1], seed=7) == (train, test)
    assert apidocs.split(ROWS, seed=8)[1] != test
    # Other rows that come or go move no row to the other side.
    assert apidocs.split(ROWS[:1000], seed=7)[1] == [row for row in test if row in ROWS[:1000]]


def test_split_is_the_same_on_every_machine() -> None:
    """Expected by hand: the order of `printf '0 text 9' | sha256sum`, where what begins below 0x2666 (0.15) is test."""
    train, test = apidocs.split([Row(f"text {i}", ("x",)) for i in range(10)], seed=0)
    assert "".join(row.text[-1] for row in train) == "850426731"
    assert "".join(row.text[-1] for row in test) == "9"


def test_groups_are_runs_of_similar_bytes() -> None:
    files = [SourceFile("p", f"{i:03}.py", size) for i, size in enumerate([0, 900, 10, 10, 2000, *[100] * 50])]
    for groups in (1, 2, 5, 200):
        found = apidocs.similar_groups(files, groups)
        assert [file for group in found for file in group] == files
        assert all(found)
        assert len(found) <= groups
    sizes = [sum(file.size for file in group) for group in apidocs.similar_groups(files[5:], 5)]
    assert sizes == [1000] * 5


def test_source_files_are_those_the_package_lists() -> None:
    files = apidocs.source_files(["packaging", "numpy"])
    assert [file.package for file in files] == sorted((file.package for file in files), reverse=True)
    paths = [file.path for file in files]
    assert paths[:1] == ["packaging/__init__.py"]
    assert "packaging/version.py" in paths
    assert "numpy/__config__.py" not in paths
    assert all(path.endswith(".py") and not path.startswith("..") for path in paths)
    assert len(set(paths)) == len(paths) > 100


def test_a_missing_package_is_named_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"'no-such-package'.*make install"):
        apidocs.source_files(["packaging", "no-such-package"])


def test_all_packages_are_installed_and_named_once() -> None:
    found = {file.package for file in apidocs.source_files(apidocs.PACKAGES)}
    assert sorted(found) == sorted(apidocs.PACKAGES)
    assert len(found) == 44


def test_a_file_that_cannot_be_parsed_is_skipped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = 'def f():\n    """Say hello to you."""\n    hello("\\d")\n'  # and an escape that Python warns of
    (tmp_path / "apart").mkdir()
    contents = {
        "good.py": good.encode(),
        "declared.py": b"# coding: latin-1\n" + good.replace("you", "fran\xe7ais").encode("latin-1"),
        "not_utf8.py": b'x = "\xff"\n',
        "null.py": b"x = 1\0\n",
        "python2.py": b"print 'hello'\n",
    }
    for name, content in contents.items():
        (tmp_path / "apart" / name).write_bytes(content)
    info = tmp_path / "apart-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apart\nVersion: 1.0\n")
    listed = [f"apart/{name},sha256=,{len(content)}" for name, content in contents.items()]
    (info / "RECORD").write_text("\n".join([*listed, "../../../bin/script.py,,10", "apart/data.txt,,3"]) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    files = apidocs.source_files(["apart"])
    assert [file.path for file in files] == sorted(f"apart/{name}" for name in contents)
    assert [file.size for file in files] == [len(contents[name]) for name in sorted(contents)]
    found, skipped = apidocs.parse_files(files)
    assert found == [Row("Say hello to français.", ("hello",)), Row("Say hello to you.", ("hello",))]
    assert skipped == ["apart/not_utf8.py", "apart/null.py", "apart/python2.py"]


@pytest.mark.timeout(60)
def test_importing_does_nothing_to_ray_and_imports_no_package_it_reads() -> None:
    code = "import sys, ray, elias_ray.apidocs; assert not ray.is_initialized(); assert 'networkx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=50)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.timeout(180)
def test_parallelism_changes_no_byte(tmp_path: Path) -> None:
    packages = ("networkx", "requests", "click")
    built = {tasks: apidocs.build(Folder.at(tmp_path / str(tasks)), 3, packages, tasks) for tasks in (1, 7)}
    assert built[1] == built[7]  # checksums included
    assert built[1].skipped_files == ()
    counted = 0
    for name in ("train.jsonl", "test.jsonl"):
        rows = [json.loads(line) for line in (tmp_path / "1" / name).read_text(encoding="utf-8").split("\n")[:-1]]
        assert len(rows) > 100
        counted += len(rows)
        for row in rows:
            assert list(row) == ["text", "labels"]
            assert row["labels"] == sorted(set(row["labels"])) != []
            assert len(row["text"].split()) >= 4
    assert counted == built[1].rows
