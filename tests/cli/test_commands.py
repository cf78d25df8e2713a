"""The command `smelt`, in this process: what each command prints, and the status that it ends with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import smelt
from smelt.cli.app import app
from smelt.cli.torch_compile_redirect import compile as served
from tests.harness.browser import chromium, opened
from tests.harness.processes import run, start

SCRIPT = """
import sys, torch

@torch.compile
def f(x):
    y = x.sin() + 1
    torch._smelt_test = len(sys.argv)
    return y.cos()

def g(x, n=2):
    return x.sin() * n

class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * 3

scaled = Scaled()
compiled = torch.compile(g)
draws = lambda x: x + torch.rand(3)
described = lambda: object
calls = []
def counts():
    calls.append(torch.ones(2))
    return torch.stack(calls).sum(0)
def other():
    return torch.ones(2) * (2 if torch.compiler.is_compiling() else 1)


if __name__ == "__main__":
    x = torch.ones(3)
    print(sys.argv[1:], torch.allclose(compiled(x), g(x)))
    compiled(torch.ones(3, 2))
    sys.exit(len(sys.argv) - 1)
"""


@pytest.fixture(autouse=True)
def own_process(monkeypatch):
    """What a script may leave changed, as it was."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(torch, "compile", torch.compile)
    monkeypatch.setattr(torch.compiler, "reset", torch.compiler.reset)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def command(*arguments: str):
    return CliRunner().invoke(app, list(arguments), prog_name="smelt")


def test_run_gives_the_script_its_arguments_and_takes_its_status(script):
    done = command("run", script, "--help", "-o", "--")
    assert done.stdout == "['--help', '-o', '--'] True\n"
    assert done.exit_code == 3


def test_explain_says_what_happened(script):
    done = command("explain", script)
    assert done.exit_code == 0
    assert done.stdout == "[] True\n"
    assert done.stderr.startswith(f"{script}: 2 graphs, 0 breaks, 1 recompile, 2 entries, compiled in ")
    assert "L['x'].shape: was (3,), now (3, 2)" in done.stderr
    assert "sin_mul (generated, graph " in done.stderr


def test_explain_of_one_function(script):
    done = command("explain", f"{script}:g", "torch.ones(3), 4")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("g: 1 graph, 0 breaks, 0 recompiles, 1 entry, compiled in ")
    done = command("explain", "--times", "3", f"{script}:g", "torch.ones(64, 64), 4")
    assert done.exit_code == 0 and re.search(r"[\d.]+ us \([\d.]+ [GM]B/s\)", done.stdout), done.output
    done = command("explain", f"{script}:h")
    assert done.exit_code == 2 and "has no function 'h'" in done.stderr


def test_explain_without_gradients(script):
    target, weight = f"{script}:g", "torch.nn.Parameter(torch.ones(3))"
    assert "saved for the backward" in command("explain", target, weight).stdout
    done = command("explain", "--no-grad", target, weight)
    assert done.exit_code == 0 and "grad_mode=False" in done.stdout.replace("\n", ""), done.output
    assert "saved for the backward" not in done.stdout
    done = command("explain", "--no-grad", script)
    assert done.exit_code == 2 and "--no-grad is for the calls of one function" in done.stderr


def test_each_rank_has_a_report_of_its_own(script, tmp_path, monkeypatch):
    """As torchrun starts them: rank 0 prints all, the others a line; no two write one file."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, name, lines in (("0", "out.html", 20), ("1", "out.rank1.html", 1)):
        monkeypatch.setenv("RANK", rank)
        done = command("report", "-o", str(tmp_path / "out.html"), script)
        assert f"the report is {tmp_path / name}" in done.stderr
        assert f"script.py, rank {rank} of 2" in (tmp_path / name).read_text()
        done = command("explain", script)
        assert done.stderr.startswith(f"{script}, rank {rank} of 2: 2 graphs, 0 breaks, ")
        assert (len(done.stderr.splitlines()) >= lines) if lines > 1 else len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["out.html", "out.rank1.html"]
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert command("explain", script).stderr.startswith(f"{script}: 2 graphs")


BROKEN = """
import os, torch
@torch.compile
def f(x):
    y = x.sin()
    os.stat("/dev/null")
    return y.cos()

def inner():
    made = torch.compile(lambda x: x * 2)
    made(torch.ones(3))

f(torch.ones(3))
inner()
raise SystemExit(5)
"""


def test_report_has_all_functions_and_those_that_are_gone(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(BROKEN)
    done = command("report", "-o", str(tmp_path / "r.json"), str(path), "-o", "kept for the script")
    assert done.exit_code == 5, done.output
    assert done.stderr == f"smelt: the report is {tmp_path / 'r.json'}\n"
    data = json.loads((tmp_path / "r.json").read_text())
    frames = {frame["name"]: frame["resumes"] for frame in data["frames"]}
    assert frames["f"] is None and frames["inner.<locals>.<lambda>"] is None
    assert [owner for name, owner in frames.items() if name.startswith("resume_in_f")] == ["f"]
    [broke] = data["breaks"]
    assert broke["frame"] == "f" and broke["id"] == "input-output"
    assert smelt.config.DEFAULT.verify or broke["cost_ms"] > 0  # verified frames are not timed


def test_a_script_that_fails_at_once_leaves_the_earlier_report(tmp_path):
    (tmp_path / "r.html").write_text("earlier")
    (tmp_path / "script.py").write_text("x = = 1")
    done = command("report", "-o", str(tmp_path / "r.html"), str(tmp_path / "script.py"))
    assert done.exit_code == 1 and "no report, as the script failed" in done.stderr
    assert (tmp_path / "r.html").read_text() == "earlier"


def test_bench_needs_smelt(script):
    done = start(
        f"import sys; sys.argv = ['smelt', 'bench', {script + ':g'!r}, 'torch.ones(3)']\n"
        "from smelt.cli.app import main; main()",
        env={**os.environ, "SMELT_DISABLE": "1"},
    )
    assert done.returncode == 2 and "SMELT_DISABLE turns smelt off" in done.stderr


@pytest.mark.parametrize("has_browser", (True, False))
def test_report_opens_a_browser(tmp_path, monkeypatch, has_browser):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or has_browser)
    (tmp_path / "script.py").write_text("print(1)")
    done = command("report", "--open", "-o", str(tmp_path / "r.html"), str(tmp_path / "script.py"))
    assert done.exit_code == 0 and opened == [(tmp_path / "r.html").as_uri()]
    assert ("--open found no browser" in done.stderr) is not has_browser


def test_report_is_a_page_that_a_browser_shows(tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    done = command("report", str(path))
    assert done.exit_code == 5, done.output
    with chromium() as browser, opened(browser, tmp_path / "report.html") as page:
        text = page.inner_text("main")
        assert "Graph breaks\n1\n" in text and "Entries\n3\n" in text


def test_explain_of_a_script_that_compiles_nothing(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("")
    said = " ".join(command("explain", str(path)).stderr.split())
    assert "0 graphs, 0 breaks" in said and "Wrap the model, model = torch.compile(model)" in said
    path.write_text("import torch\nf = torch.compile(lambda x: x)")
    assert "compiled functions that the script did not call" in command("explain", str(path)).stderr


@pytest.mark.parametrize("output", ["missing/r.html", ".", "folder.html", "file/r.json"])
def test_an_output_that_cannot_be_written_is_known_before_the_script_runs(tmp_path, output):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("kept")
    path = tmp_path / "script.py"
    path.write_text("print('ran')")
    done = command("report", "-o", str(tmp_path / output), str(path))
    assert done.exit_code == 2 and "ran" not in done.stdout
    assert "written" in done.stderr and len(done.stderr.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_that_takes_no_new_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "r.html").write_text("earlier")

    def refuse(path, *arguments):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("smelt.runtime.whole_files.os.open", refuse)  # root may write everywhere
    done = command("report", "-o", str(tmp_path / "r.html"), "x.py")
    assert done.exit_code == 2
    assert f"r.html cannot be written: Permission denied: {tmp_path}; the new file is made" in done.stderr
    assert (tmp_path / "r.html").read_text() == "earlier"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("g", "torch.ones(3)"),
        ("g", "torch.ones(3), 4"),
        ("scaled", "torch.ones(3)"),
        ("compiled", "torch.ones(3)"),
    ],
)
def test_bench_measures_eager_and_smelt(script, name, arguments):
    done = command("bench", f"{script}:{name}", arguments, "--seconds", "0.01")
    assert done.exit_code == 0, done.output
    first, eager, ours, how, results = done.stdout.splitlines()
    assert first.startswith(f"{name}: first call ")
    assert eager.startswith("  eager ") and ours.startswith("  smelt ")
    assert " times as fast" in ours or " times as slow" in ours
    assert "samples taken in turns" in how and results == "  results are as in eager"


def test_bench_says_where_results_differ(script):
    done = command("bench", f"{script}:other", "--seconds", "0.01")
    assert done.exit_code == 1
    assert "results differ: Tensor-likes are not close!" in done.stdout
    assert command("bench", f"{script}:draws", "torch.ones(3)", "--seconds", "0.01").exit_code == 0
    done = command("bench", f"{script}:described", "--seconds", "0.01")
    assert (
        done.exit_code == 0 and "not compared: they are of a class that torch does not compare" in done.stdout
    )
    done = command("bench", f"{script}:counts", "--seconds", "0.01")
    assert (
        done.exit_code == 0 and "results were not compared: eager's change from call to call" in done.stdout
    )
    assert re.search(r"threads, with \d+ compilations: `smelt explain` says why", done.stdout)


def test_ops_tells_of_all_and_of_one():
    done = command("ops")
    assert "pointwise operations" in done.stdout and "lowered: loops" in done.stdout
    done = command("ops", "aten.add.Tensor")
    assert done.stdout == "add.Tensor: lowered: loops (smelt/ops/pointwise.py)\n"
    assert command("ops", "add").stdout.splitlines()[-1] == done.stdout.strip()


def test_cache_says_where_and_clears(monkeypatch, tmp_path):
    from smelt.runtime import disk_cache

    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "kept"))
    disk_cache.store().put(disk_cache.key_of("a"), b"x" * 300_000)
    assert command("cache").stdout == f"{tmp_path}/kept: 0.3 of 1074 MB (kernels of GPUs)\n"
    assert command("cache", "--clear").stdout == f"{tmp_path}/kept: removed 0.3 MB\n"
    assert disk_cache.store().size() == 0


def test_doctor_reports(monkeypatch):
    monkeypatch.setattr("smelt.doctor.PROGRAMS", {})
    done = command("doctor")
    assert done.exit_code == 0 and "versions:\n  smelt: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "no/such.py"], "no/such.py: No such file or directory"),
        (["explain", "/"], "/: Is a directory"),
        (["explain", "--times", "3", "x.py"], "--times is for the calls of one function"),
        (["report", "-o", "report.pdf", "x.py"], "written as .html or .json, not as 'report.pdf'"),
        (["bench", "no_colon.py"], "'no_colon.py' is no SCRIPT:FUNCTION"),
        (["bench", "no/such.py:f"], "no/such.py: No such file"),
        (["ops", "adt"], "no ATen operator 'adt'; did you mean"),
        (["ops", "zzzzzz"], "no ATen operator 'zzzzzz'"),
        (["rum"], "No such command 'rum'"),
        (["cache", "--claer"], "No such option: --claer"),
        (["report", "--open", "-o", "r.json", "x.py"], "--open shows a page"),
        (["run", "--bad", "x.py"], "no such option: --bad"),
        (["report", "--outptu", "x.html", "x.py"], "did you mean '--output'?"),
        (["bench", "x.py:f", "--seconds", "-1"], "--seconds must be a positive number, got -1"),
        (["bench", "x.py:f", "--seconds", "nan"], "--seconds must be a positive number, got nan"),
        (["explain", "--times", "-1", "x.py:f"], "'--times'"),
    ],
)
def test_wrong_usage_is_told_without_a_traceback(arguments, said):
    done = command(*arguments)
    assert done.exit_code == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("smelt")


def test_without_a_command_smelt_shows_them():
    done = command()
    assert done.exit_code == 2 and "Commands:" in done.stdout and not done.stderr


PRINTING = "import torch\ntorch.compile(lambda x: x + 1)(torch.ones(3))\nprint('a line')\n"


@pytest.mark.parametrize("how", ("full disk", "closed pipe"))
@pytest.mark.parametrize(
    "arguments", (["ops"], ["--help"], ["run", "s.py"], ["report", "s.py"]), ids=lambda a: a[0]
)
def test_output_that_cannot_be_written_is_one_line(tmp_path, how, arguments):
    (tmp_path / "s.py").write_text(PRINTING)
    stdout = {"full disk": "os.open('/dev/full', os.O_WRONLY)", "closed pipe": "pipe()"}[how]
    done = start(
        f"""
import os, runpy, sys
def pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return writing
os.dup2({stdout}, 1)
sys.argv[1:] = {arguments!r}
runpy.run_module("smelt", None, "__main__", True)
""",
        cwd=tmp_path,
        startup={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    why = {"full disk": "No space left on device", "closed pipe": "Broken pipe"}[how]
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and lines.pop() == f"smelt: the output cannot be written: {why}"
    if arguments[0] == "report":
        assert (tmp_path / "report.html").stat().st_size > 1000 and lines.pop().startswith(
            "smelt: the report is "
        )
    assert not lines


def test_bench_of_a_name_that_is_not_there(script):
    done = command("bench", f"{script}:h")
    assert done.exit_code == 2 and "has no function 'h'" in done.stderr


@pytest.mark.parametrize("name", ("explain", "bench"))
@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("g", "torch.ones(3", "the arguments 'torch.ones(3': SyntaxError: '(' was never closed"),
        ("g", "nope(3)", "the arguments 'nope(3)': NameError: name 'nope' is not defined"),
        ("g", "()", "g: missing a required argument: 'x', in the call g()"),
        ("g", "torch.ones(3), 2, 3", "g: too many positional arguments, in the call g(torch.ones(3), 2, 3)"),
        ("Scaled", "torch.ones(3)", "Scaled is a class: name a function or an instance"),
        ("scald", "torch.ones(3)", "did you mean 'scaled'?"),
    ],
)
def test_mistakes_in_a_call_are_one_line(script, name, function, arguments, said):
    done = command(name, f"{script}:{function}", arguments)
    assert done.exit_code == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("name", ("explain", "bench"))
def test_an_exception_of_the_function_is_shown_from_its_frame_on(script, name, capfd):
    done = command(name, f"{script}:g", "'a'")
    assert done.exit_code == 1
    lines = (done.stderr + capfd.readouterr().err).splitlines()
    assert lines[0].startswith("Traceback") and "script.py" in lines[1], lines
    assert lines[-1].startswith("AttributeError") and len(lines) < 8


def test_an_option_behind_the_script_is_the_scripts_and_is_pointed_out(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = command("report", script, "-o", "out.html")
    assert "-o follows" in done.stderr and "the script receives it" in done.stderr
    assert "['-o', 'out.html'] True" in done.stdout


def test_help_and_version_need_no_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not wanted here')")
    for option, said in (("--help", "Commands:"), ("--version", f"smelt {smelt.__version__}, torch ")):
        done = subprocess.run(
            [sys.executable, "-m", "smelt", option],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and said in done.stdout, done.stderr


def test_unknown_variables_are_pointed_out():
    found = run(
        """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smelt
print(json.dumps([str(warning.message) for warning in caught]))
""",
        env={**os.environ, "SMELT_RECOMPILE_LIMT": "3", "SMELT_CPU": "x86-64-v3"},
    )
    (said,) = found
    assert "SMELT_RECOMPILE_LIMT is unknown; did you mean 'SMELT_RECOMPILE_LIMIT'?" in said


# ------------------------------------------------------------------------------------------ torch.compile, by smelt


def test_arguments_of_torch_compile_mean_what_they_mean_there(caplog):
    def f(x):
        print(end="")
        return x + 1

    x = torch.ones(2)
    for kwargs in (
        {},
        {"backend": "inductor"},
        {"backend": "aot_eager"},
        {"dynamic": True},
        {"mode": "max-autotune"},
        {"mode": "reduce-overhead", "recompile_limit": 3},
        {"options": {"triton.cudagraphs": True}},
        {"name": "f"} if "name" in torch_arguments() else {},
    ):
        torch.testing.assert_close(served(f, **kwargs)(x), f(x))
    assert "options of another compiler are left out: triton.cudagraphs" in caplog.text
    assert served(f, disable=True) is f
    assert served(f, options={"recompile_limit": 5})._smelt_settings.options == (("recompile_limit", 5),)
    assert served(f, recompile_limit=5)._smelt_settings.options == (("recompile_limit", 5),)
    assert served(fullgraph=True)(f)._smelt_settings.fullgraph


def torch_arguments() -> set[str]:
    import inspect

    return set(inspect.signature(torch.compile).parameters)


def test_a_backend_that_is_a_function_is_called():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    served(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert [isinstance(graph, torch.fx.GraphModule) for graph in graphs] == [True]


def test_what_is_not_known_is_an_error():
    with pytest.raises(smelt.errors.OptionError, match="unknown backend 'indutcor'"):
        served(lambda x: x, backend="indutcor")
    with pytest.raises(smelt.errors.OptionError, match="unknown mode 'fast'"):
        served(lambda x: x, mode="fast")
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        served(lambda x: x, speed=3)


def test_modules_compile_themselves_with_it(monkeypatch):
    monkeypatch.setattr(torch, "compile", served)
    model = torch.nn.Linear(3, 3)
    expected = model(torch.ones(3))
    model.compile(fullgraph=True)
    torch.testing.assert_close(model(torch.ones(3)), expected)
    assert model._compiled_call_impl.__func__._smelt_settings.fullgraph
