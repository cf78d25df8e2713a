"""The wheel: installed into an empty environment, where nothing can compile, it runs the README's example."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import smelt
from smelt.exported.cpp_project import runtime_files

ROOT = Path(__file__).parent.parent
MINOR = ".".join(torch.__version__.split(".")[:2])
NAME = f"smelt-{smelt.__version__}+torch{MINOR}-cp{sys.version_info.major}{sys.version_info.minor}"

OBJECTS = ROOT / f"build/{sys.implementation.cache_tag}-torch-{torch.__version__}"
pytestmark = [
    pytest.mark.skipif(not OBJECTS.exists(), reason="the extension was not built here"),
    pytest.mark.timeout(390),  # it compiles the extension
]


def setup(notes: Path, *command: str, **variables: str) -> None:
    """`notes`: a folder for what would otherwise lie in the checkout."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", f"--egg-base={notes}", *command],
        cwd=ROOT, env=os.environ | variables, check=True, timeout=380,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    notes = tmp_path_factory.mktemp("notes")
    setup(
        notes,
        "build",
        f"--build-lib={made / 'lib'}",  # without files that earlier builds have left
        "bdist_wheel",
        f"--dist-dir={made}",
        f"--bdist-dir={made / 'parts'}",
        SMELT_NAME_TORCH="1",
    )
    [path] = made.glob("*.whl")
    return path


def test_its_name_and_what_it_requires_say_for_which_torch_it_is(wheel: Path):
    assert wheel.name.startswith(NAME)
    with zipfile.ZipFile(wheel) as parts:
        [metadata] = (parts.read(name).decode() for name in parts.namelist() if name.endswith("METADATA"))
    major, minor = MINOR.split(".")
    required = re.search(r"^Requires-Dist: torch(.*)$", metadata, re.M)
    assert required and set(required[1].strip().split(",")) == {f">={MINOR}", f"<{major}.{int(minor) + 1}"}


def test_it_holds_all_modules_and_the_sources_of_the_cpp_runtime(wheel: Path):
    with zipfile.ZipFile(wheel) as parts:
        held = {name for name in parts.namelist() if name.startswith("smelt/")}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "smelt").rglob("*.py")}
    extension = f"smelt/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    runtime = {f"smelt/native/{name}" for name in runtime_files()}
    assert held == modules | runtime | {
        "smelt/_built.py",
        extension,
        "smelt/_native.pyi",
        "smelt/py.typed",
        "smelt/report/page.html",
    }


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with smelt from the wheel, and what it depends on: no checkout, no compiler."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    [purelib] = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as parts:
        parts.extractall(purelib)  # all that an installation of a wheel does, but for commands
    # torch and the like are this environment's own. What stands in the .pth files there (the checkout) does not count.
    (purelib / "dependencies.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    return python


def run(python: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    nothing = python.parent.parent / "empty"
    nothing.mkdir(exist_ok=True)
    environment = {"PATH": str(nothing), "HOME": str(nothing), **variables}
    return subprocess.run(
        [python, "-c", program], cwd=nothing, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_example_of_the_readme_runs_without_a_compiler(empty: Path):
    [example] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    program = f"""
import warnings
warnings.simplefilter("error")
{example}
from smelt.report.inspect import graph_count
torch.testing.assert_close(y, model(x).detach())
assert graph_count(compiled) == 1
print(smelt.__file__)
"""
    done = run(empty, program)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(empty.parent.parent)


def test_the_doctor_finds_nothing_wrong(empty: Path):
    done = run(empty, "import runpy; runpy.run_module('smelt.doctor', run_name='__main__')")
    assert done.returncode == 0, done.stdout + done.stderr


def test_with_another_torch_it_says_what_to_install(empty: Path):
    done = run(empty, "import torch; torch.__version__ = '9.8.7'; import smelt; print(smelt.unavailable)")
    assert done.stdout.strip() == (
        f"smelt was built for torch {MINOR}, this is torch 9.8.7: install torch {MINOR}, or the smelt that is for torch 9.8"
    )


def test_the_source_distribution_holds_all_that_a_build_needs(tmp_path: Path):
    setup(tmp_path, "sdist", f"--dist-dir={tmp_path / 'dist'}", SMELT_NAME_TORCH="1")
    [path] = (tmp_path / "dist").iterdir()
    assert path.name == f"smelt-{smelt.__version__}.tar.gz"  # for any torch
    with tarfile.open(path) as parts:
        held = {name.split("/", 1)[1] for name in parts.getnames() if "/" in name}
    native = {
        file.relative_to(ROOT).as_posix()
        for kind in ("*.cpp", "*.h")
        for file in (ROOT / "smelt/native").rglob(kind)
    }
    assert native | {"setup.py", "pyproject.toml", "LICENSE", "smelt/api.py", "smelt/_native.pyi"} <= held
    assert "smelt/_built.py" not in held
