"""Where tests are: each folder of smelt has one of its name, and each file a name that says what it tests."""

import re
from collections import Counter
from pathlib import Path

import tests.harness

ROOT = Path(__file__).parent
SMELT = ROOT.parent / "smelt"
WHOLE = {"catalogue", "control_flow", "gpu", "parity", "programs"}  # of the compiler as a whole
TOOLS = {"simulated"}  # what tests are run on, which has tests of its own
TESTS = sorted(ROOT.rglob("test_*.py"))


def test_no_two_files_have_one_name():
    assert [name for name, times in Counter(path.name for path in TESTS).items() if times > 1] == []


def test_folders_are_those_of_smelt():
    smelt = {path.parent.relative_to(SMELT) for path in SMELT.rglob("__init__.py")}
    folders = {
        path.parent.relative_to(ROOT)
        for path in TESTS
        if path.relative_to(ROOT).parts[0] not in WHOLE | TOOLS
    }
    assert {str(folder) for folder in folders - smelt} == set()
    assert {str(folder) for folder in smelt - folders if len(folder.parts) == 1} == set(), (
        "nothing tests them"
    )


def test_what_tests_share_is_in_the_harness():
    """No test imports another, and the harness has no tests."""
    importing = re.compile(r"^\s*(from|import) (tests[\w.]*)?\.test_\w+", re.M)
    assert [str(path) for path in ROOT.rglob("*.py") if importing.search(path.read_text())] == []
    assert not [path for path in TESTS if path.parent.name == "harness"]


def test_the_harness_says_what_it_holds():
    lines = (tests.harness.__doc__ or "").splitlines()
    named = {line.split()[0] for line in lines if line.startswith("    ")}
    assert named == {path.stem for path in (ROOT / "harness").glob("*.py")} - {"__init__"}


def test_check_touches_every_folder():
    """What `make check` runs: a file or more of each folder, all of them there."""
    makefile = (ROOT.parent / "Makefile").read_text().replace("\\\n", " ")
    [line] = re.findall(r"^QUICK := (.*)$", makefile, re.M)
    quick = line.split()
    assert [path for path in quick if not (ROOT.parent / path).exists()] == []
    folders = {path.parent.name for path in SMELT.glob("*/__init__.py")}
    assert folders - {path.split("/")[1] for path in quick} == set()
