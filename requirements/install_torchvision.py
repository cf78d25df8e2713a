"""Install the torchvision that fits this environment's torch: `python requirements/install_torchvision.py [pip's options]`.

torchvision's compiled operators load with the build of torch that they link: of its version, with or without CUDA. In order:

1. the torchvision of torch's version and local label, such as 0.28.0+cpu beside torch 2.13.0+cpu;
2. the torchvision that pip finds for this version of torch;
3. where that one raises on import, its Python files alone, installed as version `0.28.0+python`. `import torchvision` then
   works, and so do its models and transforms; an operator such as `torchvision.ops.nms` raises torchvision's own
   RuntimeError ("Couldn't load custom C++ ops").
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
# torchvision guards the other registrations in this way; these two raise where the operators are not loaded.
UNGUARDED = re.compile(r'@torch\.library\.register_fake\("torchvision::(\w+)"\)')


def main(options: list[str]) -> None:
    """Install it, unless the installed one works. Raises CalledProcessError where pip finds none."""
    if not import_error():
        return
    torch = version("torch")
    if any(install([found, f"torch=={torch}", *options]) and not import_error() for found in wanted(torch)):
        return
    try:
        found = version("torchvision").partition("+")[0]
    except PackageNotFoundError:
        sys.exit(f"pip finds no torchvision for torch {torch}, which timm and the benchmarks need")
    print(
        f"torchvision {found} is built for another build of torch than {torch}, and pip finds none that fits "
        f"({import_error()}). Its Python files are installed alone: models and transforms work, operators such as nms raise."
    )
    install_python_files(found, options)
    subprocess.run([sys.executable, "-c", "import torchvision"], check=True)


def wanted(torch: str) -> Iterator[str]:
    """Requirements, the most exact first. torchvision 0.(N + 15) belongs to torch 2.N; from 0.15 on it names the torch that
    it needs."""
    public, _, label = torch.partition("+")
    if label and (numbers := re.fullmatch(r"2\.(\d+)\.(\d+)", public)):
        yield f"torchvision==0.{int(numbers[1]) + 15}.{numbers[2]}+{label}"
    yield "torchvision>=0.15"


def import_error() -> str:
    """The last line of what `import torchvision` prints where it raises; otherwise nothing."""
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def install(arguments: list[str]) -> bool:
    """Whether pip finds and installs it."""
    return not subprocess.run([*PIP, "install", "-q", *arguments], capture_output=True).returncode


def install_python_files(public: str, options: list[str]) -> None:
    """Install torchvision's wheel without its compiled libraries, with a version that says so."""
    with tempfile.TemporaryDirectory() as folder:
        run = [*PIP, "download", "-q", "--no-deps", "-d", folder, f"torchvision=={public}", *options]
        subprocess.run(run, check=True)
        (downloaded,) = Path(folder).glob("*.whl")
        wheel = [sys.executable, "-m", "wheel"]
        subprocess.run([*wheel, "unpack", "-d", folder, downloaded], check=True, stdout=subprocess.DEVNULL)
        tree = Path(folder, f"torchvision-{public}")
        remove_libraries(tree, public, f"{public}+python")
        subprocess.run([*wheel, "pack", "-d", folder, tree], check=True, stdout=subprocess.DEVNULL)
        (packed,) = Path(folder).glob("*+python-*.whl")
        subprocess.run([*PIP, "install", "-q", str(packed), *options], check=True)


def remove_libraries(tree: Path, public: str, labelled: str) -> None:
    """Change the unpacked wheel at `tree` to version `labelled`, without compiled libraries."""
    for library in [*tree.glob("torchvision/*.so"), *tree.glob("torchvision.libs/*")]:
        library.unlink()
    registrations = tree / "torchvision" / "_meta_registrations.py"
    registrations.write_text(UNGUARDED.sub(r'@register_meta("\1")', registrations.read_text()))
    metadata = tree / f"torchvision-{public}.dist-info"
    info = metadata / "METADATA"
    info.write_text(info.read_text().replace(f"\nVersion: {public}\n", f"\nVersion: {labelled}\n", 1))
    (tree / "torchvision" / "version.py").write_text(f"__version__ = {labelled!r}\ncuda = None\n")
    shutil.move(metadata, tree / f"torchvision-{labelled}.dist-info")


if __name__ == "__main__":
    main(sys.argv[1:])
