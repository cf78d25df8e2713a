"""Where tests are: each folder of smelt has one of its name, and each file a name that says what it tests."""

from collections import Counter
from pathlib import Path

from tests.harness import sources

ROOT = Path(__file__).parent
WHOLE = {
    "catalogue",
    "gpu",
    "parity",
    "programs",
}  # of the compiler as a whole; tests/harness is what tests are written with
TESTS = sorted(ROOT.rglob("test_*.py"))


def test_no_two_files_have_one_name():
    assert [name for name, times in Counter(path.name for path in TESTS).items() if times > 1] == []


def test_folders_are_those_of_smelt():
    smelt = {
        path.parent.relative_to(ROOT.parent / "smelt")
        for path in (ROOT.parent / "smelt").rglob("__init__.py")
    }
    folders = {path.parent.relative_to(ROOT) for path in TESTS if path.parts[len(ROOT.parts)] not in WHOLE}
    assert {str(folder) for folder in folders - smelt} == set()
    assert {str(folder) for folder in smelt - folders if len(folder.parts) == 1} == set(), (
        "nothing tests them"
    )


def test_what_tests_share_is_in_the_harness():
    """No test imports another, and the harness has no tests."""
    every = sources.modules(ROOT)
    shared = {name for m in every.values() for _, name in sources.import_names(m) if ".test_" in name}
    assert shared == set()
    assert not [path for path in TESTS if path.parent.name == "harness"]


def test_the_harness_says_what_it_holds():
    every = sources.modules(ROOT)
    named = {
        line.split()[0]
        for line in (every["tests.harness"].tree.body[0].value.value).splitlines()
        if line[:4] == "    "
    }
    assert named == {name.split(".")[-1] for name in every if name.startswith("tests.harness.")}
