"""The commands of `smelt`. Wrong usage is one line on stderr and status 2; scripts end with their own status.

Commands import the compiler themselves, so that the others work where smelt cannot be built.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from smelt import api, compatibility
from smelt import doctor as checkup
from smelt.cli import bench as benching
from smelt.cli import run_script
from smelt.cli.torch_compile_redirect import redirect
from smelt.errors import SmeltError

app = typer.Typer(
    help="A PyTorch compiler that is small, instant and honest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Arguments and options after a script's name are the script's.
_OF_A_SCRIPT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
Script = Annotated[
    str, typer.Argument(metavar="SCRIPT", help="A file of Python; what follows are its arguments.")
]


def main() -> None:
    """Run the command line of this process."""
    app(prog_name="smelt")


@app.command(context_settings=_OF_A_SCRIPT)
def run(context: typer.Context, script: Script) -> None:
    """Run a script, with torch.compile redirected to smelt."""
    raise SystemExit(_run(script, context.args))


@app.command(context_settings=_OF_A_SCRIPT)
def explain(
    context: typer.Context,
    script: Script,
    times: Annotated[
        int, typer.Option(min=0, help="Of SCRIPT:FUNCTION: so many more calls, to time kernels.")
    ] = 0,
) -> None:
    """Run a script, then report what was compiled, graph breaks and recompiles.

    With SCRIPT:FUNCTION and an expression for its arguments, call that function once, as bench does.
    """
    if ":" in script and not os.path.exists(script):
        _, function, call = _function(script, *(context.args[:1] or ["()"]))
        with _one_line():
            print(api.explain(benching.original(function), times=times)(*call), end="")
        return
    if times:
        raise typer.BadParameter("--times is for the calls of one function: SCRIPT:FUNCTION")
    explanation, status = _observed(script, context.args)
    sys.stdout.flush()
    print(explanation, end="", file=sys.stderr)
    raise SystemExit(status)


@app.command(context_settings=_OF_A_SCRIPT)
def report(
    context: typer.Context,
    script: Script,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to, before the script: a name in .html or .json.")
    ] = Path("report.html"),
) -> None:
    """Run a script, and write a report: one HTML file that needs no network."""
    if output.suffix not in (".html", ".json"):
        raise typer.BadParameter(f"a report is written as .html or .json, not as {output.name!r}")
    output = output.absolute()  # the script may go elsewhere
    explanation, status = _observed(script, context.args)
    try:
        explanation.save(output)
    except OSError as error:
        raise typer.BadParameter(f"{output}: {error.strerror}") from None
    print(f"smelt: the report is {output}", file=sys.stderr)
    raise SystemExit(status)


@app.command()
def bench(
    target: Annotated[str, typer.Argument(metavar="SCRIPT:FUNCTION", help="A function or module of a file.")],
    arguments: Annotated[
        str,
        typer.Argument(
            help="Its arguments: an expression over the names of the file, such as 'torch.ones(3), 2'."
        ),
    ] = "()",
    seconds: Annotated[float, typer.Option(help="For how long to measure.")] = 2.0,
    no_grad: Annotated[bool, typer.Option("--no-grad", help="Measure under torch.no_grad().")] = False,
) -> None:
    """Measure a function, eager against smelt. Exits with status 1 if results differ."""
    name, function, call = _function(target, arguments)
    with torch.set_grad_enabled(not no_grad and torch.is_grad_enabled()), _one_line():
        measured = benching.measure(function, call, seconds)
    print(benching.report(name, measured))
    raise SystemExit(1 if measured.differs else 0)


@app.command()
def ops(name: Annotated[str, typer.Argument(help="An operator: add, aten.add.Tensor.")] = "") -> None:
    """List the primitives of loops, and the treatment of each ATen operator."""
    operators = _of_compiler("smelt.cli.operator_listing")
    try:
        print(operators.about(name) if name else operators.overview())
    except LookupError as error:
        raise typer.BadParameter(error.args[0]) from None


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all files.")] = False,
) -> None:
    """Show the folder and size of the disk cache, or clear it."""
    store = _of_compiler("smelt.runtime.disk_cache").store()
    if clear and store is not None:
        print(f"{store.folder}: removed {store.clear() / 1e6:.1f} MB")
    else:
        print(checkup.disk_cache())


@app.command()
def doctor() -> None:
    """Report versions, the machine, and what works on it; status 1 if something does not."""
    raise SystemExit(checkup.main())


def _of_compiler(name: str) -> Any:
    if compatibility.compiler() and compatibility.unavailable is not None:
        raise typer.BadParameter(compatibility.unavailable)
    return importlib.import_module(name)


def _function(target: str, arguments: str) -> tuple[str, Any, tuple[Any, ...]]:
    """Name, function and arguments of `SCRIPT:FUNCTION` and an expression."""
    script, colon, name = target.rpartition(":")
    if not colon or not name:
        raise typer.BadParameter(f"{target!r} is no SCRIPT:FUNCTION")
    redirect()
    with _one_line():
        module = run_script.load(script)
    function = _found(module, name)
    values = eval(arguments, {"torch": torch, **module.__dict__})
    return name, function, values if isinstance(values, tuple) else (values,)


def _run(script: str, arguments: list[str]) -> int:
    redirect()
    with _one_line():
        return run_script.run_script(script, arguments)


def _observed(script: str, arguments: list[str]) -> tuple[Any, int]:
    """The explanation of what a script compiles, and the script's status."""
    explanation = _of_compiler("smelt.cli.script_explanation").ScriptExplanation(script)
    with explanation.watching():
        return explanation, _run(script, arguments)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn unreadable files and smelt's refusals into one line without a traceback."""
    try:
        yield
    except (run_script.NoScript, SmeltError) as error:
        raise typer.BadParameter(str(error)) from None


def _found(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise typer.BadParameter(f"{module.__file__} has no function {name!r}")
    return found
