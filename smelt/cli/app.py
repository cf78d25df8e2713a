"""The commands of `smelt`. Wrong usage is one line on stderr and status 2, output that cannot be written one line and
status 1; scripts end with their own status.

Commands import torch and the compiler themselves: `smelt --help` needs neither, and the others work where smelt cannot
be built.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import inspect
import math
import os
import platform
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import smelt
from smelt.cli import run_script
from smelt.errors import SmeltError

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
# What writing to a full disk or a closed pipe raises.
_UNWRITABLE = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Refused(UsageError):  # type: ignore[misc, valid-type]
    """What a command cannot do; the text says all that a user needs."""


class Commands(TyperGroup):
    """The commands, whose errors are one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line, and raise SystemExit with its status."""
        try:
            raise SystemExit(super().main(*args, **{**kwargs, "standalone_mode": False}) or 0)
        except UsageError as error:
            print(_one_line_of(error), file=sys.stderr)
            raise SystemExit(2) from None

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line; `--help` and `--version` print here."""
        with _stdout():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _stdout():
            return super().invoke(ctx)


def _one_line_of(error: Any) -> str:
    """`smelt cache: No such option: --claer (Possible options: --clear). See smelt cache --help.`"""
    said = error.format_message()
    if error.ctx is None or isinstance(error, Refused):
        return f"smelt: {said}"
    command = error.ctx.command_path
    return f"{command}: {said}{'' if said.endswith(('.', '?')) else '.'} See {command} --help."


@contextmanager
def _stdout() -> Iterator[None]:
    """Flush what the context prints, and turn a failure into one line and status 1."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        with suppress(OSError, ValueError):  # what is buffered would fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"smelt: the output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None


app = typer.Typer(
    cls=Commands,
    help="A PyTorch compiler that is small, instant and honest.",
    invoke_without_command=True,
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


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = "absent"
        print(f"smelt {smelt.__version__}, torch {torch}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def _smelt(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show versions and exit."),
    ] = False,
) -> None:
    """A PyTorch compiler that is small, instant and honest."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command(context_settings=_OF_A_SCRIPT)
def run(context: typer.Context, script: Script) -> None:
    """Run a script, with torch.compile redirected to smelt."""
    _check_options(context, script)
    raise SystemExit(_run(script, context.args))


@app.command(context_settings=_OF_A_SCRIPT)
def explain(
    context: typer.Context,
    script: Script,
    times: Annotated[
        int, typer.Option(min=0, help="Of SCRIPT:FUNCTION: so many more calls, to time kernels.")
    ] = 0,
    no_grad: Annotated[
        bool, typer.Option("--no-grad", help="Of SCRIPT:FUNCTION: call it under torch.no_grad().")
    ] = False,
) -> None:
    """Run a script, then report on its compilations.

    The report has graph breaks, recompiles, guards, kernels and times. Under torchrun, rank 0 prints it, other ranks its
    first line. With SCRIPT:FUNCTION and an expression for its arguments, call that function once, as bench does.
    """
    _check_options(context, script)
    if ":" in script and not os.path.exists(script):
        if len(context.args) > 1:
            raise Refused(f"one expression follows {script!r}, got {context.args}: quote it")
        callables = _of_compiler("smelt.runtime.compiled_callables")
        module, function, call = _function(script, *(context.args or ["()"]))
        with _one_line(), _shown(module), _without_gradients(no_grad):
            print(smelt.explain(callables.eager_callable(function), times=times)(*call), end="")
        return
    for option, passed in (("--times", times), ("--no-grad", no_grad)):
        if passed:
            raise Refused(f"{option} is for the calls of one function: SCRIPT:FUNCTION")
    explanation, status = _observed(script, context.args)
    sys.stdout.flush()
    text = str(explanation)
    print(text if _ranks().is_first() else text.partition("\n")[0] + "\n", end="", file=sys.stderr)
    raise SystemExit(status)


@app.command(context_settings=_OF_A_SCRIPT)
def report(
    context: typer.Context,
    script: Script,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to, before the script: a name in .html or .json.")
    ] = Path("report.html"),
    shows: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Run a script, then write the report as a page.

    It is one HTML file that needs no network. Under torchrun, each rank writes one: report.html, report.rank1.html, ..."""
    _check_options(context, script)
    if output.suffix not in (".html", ".json"):
        raise Refused(f"a report is written as .html or .json, not as {output.name!r}")
    if shows and output.suffix != ".html":
        raise Refused("--open shows a page: --output must end in .html")
    output = _ranks().own_path(output.absolute())  # the script may go elsewhere
    with _writing(output):
        _of_compiler("smelt.runtime.whole_files").check_writable(output)
    explanation, status = _observed(script, context.args)
    if status and explanation.is_empty():
        print("smelt: no report, as the script failed before it compiled anything", file=sys.stderr)
        raise SystemExit(status)
    with _writing(output):
        explanation.save(output)
    print(f"smelt: the report is {output}", file=sys.stderr)
    if shows and _ranks().is_first() and not webbrowser.open(output.as_uri()):
        print("smelt: --open found no browser", file=sys.stderr)
    raise SystemExit(status)


@app.command()
def package(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A file that smelt.export wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the project.")],
    weights: Annotated[
        Path | None, typer.Option(help="The program's safetensors file, if it has one.")
    ] = None,
) -> None:
    """Write a C++ project for an exported program.

    It has CMakeLists.txt, an example, and the sources of the runtime."""
    project = _of_compiler("smelt.exported.cpp_project")
    for file in (program, weights):
        if file is not None and not file.is_file():
            raise Refused(f"no such file: {file}")
    with _writing(output), _one_line():
        project.write_project(program, output, weights)
    print(
        f"{output}: cmake -B build -DCMAKE_PREFIX_PATH=$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
    )


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
    if not 0 < seconds < math.inf:
        raise Refused(f"--seconds must be a positive number, got {seconds:g}")
    benching = _of_compiler("smelt.cli.bench")
    module, function, call = _function(target, arguments)
    with _one_line(), _shown(module):
        measured = benching.measure(function, call, seconds, no_grad)
    print(benching.report(target.rpartition(":")[2], measured))
    raise SystemExit(1 if measured.differs else 0)


@app.command()
def ops(name: Annotated[str, typer.Argument(help="An operator: add, aten.add.Tensor.")] = "") -> None:
    """List how smelt treats operators.

    Lists the primitives of loops, and the treatment of each ATen operator."""
    operators = _of_compiler("smelt.cli.operator_listing")
    try:
        print(operators.about(name) if name else operators.overview())
    except LookupError as error:
        raise Refused(error.args[0]) from None


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all files.")] = False,
) -> None:
    """Show or clear the disk cache."""
    store = _of_compiler("smelt.runtime.disk_cache").store()
    if clear and store is not None:
        print(f"{store.folder}: removed {store.clear() / 1e6:.1f} MB")
    else:
        print(importlib.import_module("smelt.doctor").disk_cache())


@app.command()
def doctor() -> None:
    """Report versions, the machine and what works.

    Ends with status 1 if something does not."""
    raise SystemExit(importlib.import_module("smelt.doctor").main())


def _check_options(context: typer.Context, script: str) -> None:
    """Refuse an unknown option in the script's place, and say where an option of the command went to the script."""
    options = [
        (param.name, opt) for param in context.command.params for opt in param.opts if opt.startswith("-")
    ]
    names = [opt for _, opt in options]
    if script.startswith("-") and not os.path.exists(script):
        near = difflib.get_close_matches(script, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "options of the script follow its name"
        raise Refused(f"no such option: {script}; {hint}")
    words = {word.partition("=")[0] for word in context.args}
    defaulted = {opt for name, opt in options if name and _is_default(context, name)}
    for passed in sorted(words & defaulted):
        print(
            f"smelt: {passed} follows {script}, so the script receives it; options of smelt precede the script",
            file=sys.stderr,
        )


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name.startswith("DEFAULT")


def _of_compiler(name: str) -> Any:
    compatibility: Any = importlib.import_module("smelt.compatibility")
    if compatibility.compiler() and compatibility.unavailable is not None:
        raise Refused(compatibility.unavailable)
    return importlib.import_module(name)


def _ranks() -> Any:
    return importlib.import_module("smelt.ranks")  # imports torch


def _without_gradients(wanted: bool) -> AbstractContextManager[Any]:
    import torch  # noqa: PLC0415

    return torch.no_grad() if wanted else nullcontext()


def _redirect() -> None:
    importlib.import_module("smelt.cli.torch_compile_redirect").redirect()


def _function(target: str, arguments: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """The module, function and arguments of `SCRIPT:FUNCTION` and an expression."""
    script, colon, name = target.rpartition(":")
    if not colon or not name:
        raise Refused(f"{target!r} is no SCRIPT:FUNCTION, such as model.py:f")
    _redirect()
    with _one_line():
        module = run_script.load(script)
    function = _found(module, name)
    values = _values(arguments, module)
    try:
        inspect.signature(function).bind(*values)
    except TypeError as error:
        raise Refused(f"{name}: {error}, in the call {name}{_in_call(arguments)}") from None
    except ValueError:  # a native function without a signature
        pass
    return module, function, values


def _values(arguments: str, module: Any) -> tuple[Any, ...]:
    """The values of an expression over the names of the file."""
    import torch  # noqa: PLC0415

    try:
        values = eval(arguments, {"torch": torch, **module.__dict__})
    except Exception as error:
        text = error.msg if isinstance(error, SyntaxError) else error
        raise Refused(f"the arguments {arguments!r}: {type(error).__name__}: {text}") from None
    return values if isinstance(values, tuple) else (values,)


def _in_call(arguments: str) -> str:
    return arguments if arguments.startswith("(") and arguments.endswith(")") else f"({arguments})"


def _run(script: str, arguments: list[str]) -> int:
    _redirect()
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
        raise Refused(str(error)) from None


@contextmanager
def _shown(module: Any) -> Iterator[None]:
    """Show exceptions of the file's function as Python does, from its frame on; status 1."""
    try:
        yield
    except SmeltError:
        raise
    except Exception as error:
        raise SystemExit(run_script.show(error, module)) from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn failures to write a file into one line."""
    try:
        yield
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None


def _found(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [n for n, v in vars(module).items() if callable(v)], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Refused(f"{module.__file__} has no function {name!r}{hint}")
    if inspect.isclass(found):
        raise Refused(f"{name} is a class: name a function or an instance, such as model = {name}(...)")
    return found
