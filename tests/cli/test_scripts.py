"""`smelt run script.py` in a process of its own: all that can be seen of it is what `python script.py` shows."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.harness.processes import start

SCRIPTS = {
    "what it sees of itself": """
        import sys, pickle, inspect, beside, __main__
        class A: pass
        print(__name__, __file__, __spec__, sys.argv, sys.path[0], __doc__, sorted({*vars()} - {'__annotations__'}))
        print(__main__.A is A, type(pickle.loads(pickle.dumps(A()))) is A, inspect.getsource(A), beside.here)
    """,
    "an exception": """
        import beside
        def f(x): return 1 / x
        try: f(0)
        except ZeroDivisionError as e: raise ValueError("caused") from e
    """,
    "a syntax error": "print(1)\nx = = 2\n",
    "a message at the end": "import sys\nprint('out')\nsys.exit('message')\n",
    "a status": "import sys, atexit\natexit.register(print, 'at exit')\nsys.exit(7)\n",
    "a hook for exceptions": """
        import sys
        sys.excepthook = lambda kind, error, traceback: print("hook", kind, traceback.tb_lineno)
        raise KeyError(3)
    """,
    "an encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
}


def ended(*command: str, where: Path) -> tuple[int, str, str]:
    """What a process showed that imports the smelt under test, be that the checkout's or an installed one."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=where,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def ended_after_torch(*command: str, where: Path) -> tuple[int, str, str]:
    """What `python -m smelt` showed, in a process in which torch was imported before: the import takes most of the time."""
    program = (
        f"import runpy, sys; sys.argv[1:] = {command!r}; runpy.run_module('smelt', None, '__main__', True)"
    )
    done = start(program, cwd=where)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_python_runs_it(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("here = __file__\n")
    (folder / "script.py").write_bytes(textwrap.dedent(SCRIPTS[name]).lstrip("\n").encode("latin-1"))
    command = ["folder/script.py", "--first", "-h", "--", "second"]
    expected = ended(*command, where=tmp_path)
    assert ended_after_torch("run", *command, where=tmp_path) == expected
    if name == "what it sees of itself":
        assert ended("-m", "smelt", "run", *command, where=tmp_path) == expected


def test_its_torch_compile_is_smelt_and_torchs_compiler_is_not_imported(tmp_path):
    (tmp_path / "script.py").write_text("""
import sys, torch
@torch.compile(fullgraph=True)
def f(x): return x.sin() + 1
x = torch.ones(3)
torch.testing.assert_close(f(x), x.sin() + 1)
torch.compiler.reset()
print(type(f).__module__, [m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor"))])
""")
    assert ended("-m", "smelt", "run", "script.py", where=tmp_path) == (0, "smelt._native []\n", "")


@pytest.mark.parametrize(
    "command", (["bench", "--seconds", "0.01"], ["explain", "--times", "3"]), ids=lambda c: c[0]
)
def test_measuring_imports_neither_torchs_compiler_nor_sympy(tmp_path, command):
    """Their imports would take longer than all the rest."""
    (tmp_path / "script.py").write_text("def f(x): return x.sin() * 2\n")
    done = start(
        f"import sys; sys.argv[1:] = {[*command, 'script.py:f', 'torch.ones(3)']!r}\n"
        "from smelt.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as ended: print(ended)\n"
        "print({'sympy', 'torch._dynamo', 'torch._inductor', 'torch.distributed.tensor'} & sys.modules.keys())",
        cwd=tmp_path,
    )
    assert done.stdout.endswith("0\nset()\n"), done


def test_settings_and_errors_of_torchs_compiler(tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
            import sys, torch
            from smelt.report.inspect import entries
            def saves(x): torch.save(x, "/dev/null"); return x
            def fails(graph, inputs): raise RuntimeError("no device")
            x = torch.ones(2)
            try: torch.compile(saves, fullgraph=True)(x)
            except torch._dynamo.exc.Unsupported as error: print(type(error))  # imports it after the error was raised
            try: torch.compile(lambda x: x + 1, fullgraph=True, backend=fails)(x)
            except torch._dynamo.exc.BackendCompilerFailed as error: print(error)
            try: torch.compile(saves, fullgraph=True)(x)
            except torch._dynamo.exc.TorchDynamoException as error: print(type(error))

            def longer(x, text): return x + len(text)
            def count(compiled):
                for text in "a bb ccc dddd eeeee ffffff ggggggg hhhhhhhh iiiiiiiii jjjjjjjjjj".split():
                    assert torch.equal(compiled(x, text), longer(x, text))
                return len(entries(compiled))
            def another(): return lambda x, text: longer(x, text)  # equal compilations of one function share entries
            before = torch.compile(another(), dynamic=False)
            print(count(torch.compile(another(), dynamic=False)))
            torch._dynamo.config.cache_size_limit = 3
            print(count(before), count(torch.compile(another(), dynamic=False, options={"recompile_limit": 5})))
            torch._dynamo.config.recompile_limit = 64
            print(count(torch.compile(another(), dynamic=False)))
            grow = torch.compile(lambda x: x * 2)
            for n in (3, 4, 5): grow(torch.ones(n))
            torch._dynamo.config.automatic_dynamic_shapes = False
            static = torch.compile(lambda x: x * 2)
            for n in (3, 4, 5): static(torch.ones(n))
            print(len(entries(grow)), len(entries(static)))
            torch._dynamo.config.disable = True
            print(torch.compile(longer) is longer)
        """)
    )
    status, out, errors = ended("-m", "smelt", "run", "script.py", where=tmp_path)
    assert status == 0, errors
    assert out.splitlines() == [
        "<class 'smelt.errors.Unsupported'>",
        "the backend failed on <lambda>: RuntimeError: no device",
        "<class 'smelt.errors.Unsupported'>",
        "8",
        "3 5",
        "10",
        "2 3",
        "True",
    ]


def test_an_interrupt_ends_with_the_status_of_one(tmp_path):
    (tmp_path / "script.py").write_text("raise KeyboardInterrupt\n")
    status, _, told = ended("-m", "smelt", "run", "script.py", where=tmp_path)
    assert status == 130 and told.endswith("KeyboardInterrupt\n") and "smelt" not in told


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("doctor", 1, "smelt cannot be imported here"),
        ("run script.py", 0, "functions run eagerly: smelt cannot be imported here"),
        ("ops", 2, "smelt cannot be imported here"),
        ("explain script.py", 2, "smelt cannot be imported here"),
        ("--help", 0, "doctor"),
    ],
)
def test_where_smelt_cannot_work(tmp_path, command, status, said):
    (tmp_path / "script.py").write_text("import torch\nassert torch.compile(abs) is abs\n")
    program = f"""
import sys
sys.modules["smelt._native"] = None
sys.argv[1:] = {command.split()}
from smelt.cli.app import main
main()
"""
    done = start(program, cwd=tmp_path)
    assert done.returncode == status and said in (done.stdout + done.stderr).replace("\n", " "), done
