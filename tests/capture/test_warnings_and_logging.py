"""Output beyond the catalogue's tests: lines reported by warnings, logging's own capture, repeated output."""

# ruff: noqa: B028 (warnings without a stack level are what is tested)

from __future__ import annotations

import locale
import logging
import sys
import threading
import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.capture.stdlib import eval_exec
from smelt.report.inspect import entries, reasons

log = logging.getLogger(__name__)


def ones() -> torch.Tensor:
    return torch.ones(2)


def shown(fn: Callable[..., Any], action: Any, *calls: tuple[Any, ...]) -> list[tuple[str, str, str, int]]:
    """The warnings that calls of `fn` give: text, class, file, line."""
    globals().get("__warningregistry__", {}).clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        for arguments in calls:
            fn(*arguments)
    return [(str(w.message), w.category.__name__, w.filename, w.lineno) for w in seen]


def agree(fn: Callable[..., Any], action: Any, *calls: tuple[Any, ...], captured: bool = True) -> list[Any]:
    smelt.reset()
    compiled = smelt.compile(fn)
    want, got = [shown(f, action, *calls) for f in (fn, compiled)]
    assert got == want
    assert not captured or not reasons(compiled)
    return want


def warns(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    warnings.warn("first", stacklevel=1)
    y = x + n
    warnings.warn(f"sum {y.sum()}", RuntimeWarning)
    warnings.warn(DeprecationWarning("an object"))
    return y


def test_always_shown_warnings() -> None:
    assert len(agree(warns, "always", (ones(),), (ones(),), (ones() * 2,))) == 9


def test_warnings_shown_once_per_line_and_text() -> None:
    seen = agree(warns, "default", (ones(),), (ones(),), (ones() * 2,), (ones(), 5))
    assert [w[0] for w in seen] == ["first", "sum 4.0", "an object", "sum 6.0", "sum 12.0"]


def test_ignored_warnings_defer_no_call() -> None:
    smelt.reset()
    compiled = smelt.compile(warns)
    assert shown(compiled, "ignore", (ones(),), (ones(),)) == []
    assert "warn(" not in entries(compiled)[0].source
    assert len(shown(compiled, "always", (ones(),))) == 3  # the filters are guarded


@pytest.mark.parametrize("own", [True, False])
def test_filters_of_cpython_have_texts_in_place_of_patterns(own: bool) -> None:
    """As the filter that shows deprecations in `__main__`, which only C code creates."""
    module = __name__ if own else __name__[:-1]  # a pattern would match the beginning
    filters: list[Any] = [
        ("ignore", "first", UserWarning, None, 0),
        ("ignore", "an", DeprecationWarning, None, 0),
        ("default", None, DeprecationWarning, module, 0),
        ("ignore", None, DeprecationWarning, None, 0),
    ]
    compiled = smelt.compile(warns)
    seen = []
    for fn in (warns, compiled):
        globals().get("__warningregistry__", {}).clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.filters[:] = filters
            for _ in range(2):
                fn(ones())
        seen.append([str(w.message) for w in caught])
    assert seen[0] == seen[1] and ("an object" in seen[0]) == own and "first" not in seen[0]
    assert not reasons(compiled)


@pytest.mark.parametrize("action", ["ignore", "always"])
def test_filters_with_patterns_select_when_the_text_is_known(action: Any) -> None:
    """torch and NumPy install such filters: the text of a warning that shows a result is known after the graph."""
    smelt.reset()
    compiled = smelt.compile(warns, fullgraph=True)
    seen = []
    for fn in (warns, compiled):
        globals().get("__warningregistry__", {}).clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always" if action == "ignore" else "ignore")
            warnings.filterwarnings(action, "sum 4", RuntimeWarning)
            for _ in range(2):
                fn(ones()), fn(ones() * 2)
        seen.append([str(w.message) for w in caught])
    assert seen[0] == seen[1] and ("sum 4.0" in seen[0]) == (action == "always")


def test_a_pattern_that_may_make_a_warning_an_error_breaks_the_graph() -> None:
    compiled = smelt.compile(warns)
    for fn in (warns, compiled):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "sum 4", RuntimeWarning)
            assert torch.equal(fn(ones() * 3), ones() * 4)
            with pytest.raises(RuntimeWarning, match=r"sum 4\.0"):
                fn(ones())
    assert "filter" in str(reasons(compiled))


def test_warning_as_error_is_raised_at_its_line() -> None:
    def fn(x: torch.Tensor) -> Any:
        try:
            warnings.warn("an error")
        except UserWarning as e:
            return x - 1, str(e)
        return x + 1

    compiled = smelt.compile(fn)
    with warnings.catch_warnings():
        for action in ("ignore", "error", "error", "ignore", "error"):
            warnings.simplefilter(action)
            assert type(compiled(ones())) is type(fn(ones()))


def test_warning_line_with_stack_level() -> None:
    def deprecated(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("deprecated() is old", DeprecationWarning, stacklevel=2)
        return x + 1

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = deprecated(x)
        warnings.warn("the caller of the compiled function", FutureWarning, 2)
        warnings.warn("and its caller", FutureWarning, stacklevel=3)
        return deprecated(
            y,
        )

    seen = agree(fn, "always", (ones(),), (ones(),))
    assert len({w[3] for w in seen}) == 4


class Warner(torch.nn.Module):
    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("from forward", stacklevel=self.level)
        log.warning("from %s", type(self).__name__, stacklevel=self.level)
        return x + 1


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_warning_line_above_a_module(level: int) -> None:
    """Torch has two frames between a module's caller and its `forward`."""
    inner, model = Warner(level), Warner(level)
    compiled = smelt.compile(model)
    agree(lambda x: inner(inner(x)), "always", (ones(),), (ones(),), captured=level < 4)
    want, got = [shown(lambda: m(ones()), "always", (), ()) for m in (model, compiled)]  # noqa: B023
    assert got == want


def test_log_records(caplog: pytest.LogCaptureFixture) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        log.warning("from %s, level %d", "inner", 2, stacklevel=2)
        return x * 2

    def fn(x: torch.Tensor) -> torch.Tensor:
        log.info("not seen")
        log.warning("x is %s", x)
        logging.error("to the root: %.1f", x.sum())
        return inner(x)

    def records(call: Callable[..., Any]) -> list[Any]:
        caplog.clear()
        call(ones())
        call(ones() * 2)
        return [
            (r.name, r.levelno, r.getMessage(), r.pathname, r.lineno, r.funcName, r.module)
            for r in caplog.records
        ]

    compiled = smelt.compile(fn)
    assert records(compiled) == records(fn)
    assert len(records(compiled)) == 6 and not reasons(compiled)


def test_log_record_above_the_compiled_function(caplog: pytest.LogCaptureFixture) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        log.warning("above", stacklevel=2)
        log.warning("far above", stacklevel=1000)
        return x + 1

    compiled = smelt.compile(fn)
    for call in (compiled, fn, compiled):
        call(ones())
    places = [(r.pathname, r.lineno, r.funcName) for r in caplog.records]
    assert places[0:2] == places[2:4] == places[4:6]


def test_lines_after_graph_breaks(caplog: pytest.LogCaptureFixture) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        log.warning("before")
        smelt.graph_break()
        log.warning("after"), log.warning("in fn", stacklevel=2), log.warning("here", stacklevel=3)
        return x + 1

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = inner(x)
        log.warning("in fn"), log.warning("its caller", stacklevel=2)
        smelt.graph_break()
        log.warning("the rest"), log.warning("its caller", stacklevel=2)
        return y

    compiled = smelt.compile(fn)
    for call in (fn, compiled, compiled):
        call(ones())
    places = [(r.lineno, r.funcName) for r in caplog.records if r.name == log.name]
    assert places[:8] == places[8:16] == places[16:] and len(places) == 24


def test_changing_log_level(caplog: pytest.LogCaptureFixture) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        log.debug("debug %s", x)
        return x + 1 if log.isEnabledFor(logging.DEBUG) else x - 1

    compiled = smelt.compile(fn)
    for level, count in ((logging.INFO, 0), (logging.DEBUG, 1), (logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.clear()
        with caplog.at_level(level, log.name):
            assert torch.equal(compiled(ones()), fn(ones()))
        assert len(caplog.records) == 2 * count
    assert len(entries(compiled)) == 2


def test_output_before_an_exception_appears_once(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        print("before", n)
        if n:
            raise ValueError(f"{n}")
        return x + n

    compiled = smelt.compile(fn)
    for n in (0, 1, 1, 0, 2):
        try:
            compiled(ones(), n)
        except ValueError as e:
            assert str(e) == str(n)
    assert capsys.readouterr().out.splitlines() == [f"before {n}" for n in (0, 1, 1, 0, 2)]


def test_capture_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        print("once")
        list(map(print, ["mapped"]))
        return x + x.sum().item()

    smelt.compile(fn)(ones())
    assert capsys.readouterr().out == "once\nmapped\n"


def test_the_compiled_frame_reads_as_python() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        print("shape", x.shape)
        y = x + 1
        print(f"sum {y.sum():.2f}")
        return y

    compiled = smelt.compile(fn)
    compiled(ones())
    (entry,) = entries(compiled)
    assert "    print('shape torch.Size([2])')\n" in entry.source
    assert "    print(concatenate('sum ', format(t1, '.2f')))\n" in entry.source


def test_warnings_of_other_threads_during_compile_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slowly(*args: Any, **kwargs: Any) -> Any:
        thread = threading.Thread(target=warnings.warn, args=("from another thread",))
        thread.start()
        thread.join()
        return compile(*args, **kwargs)

    monkeypatch.setattr(eval_exec, "compile", slowly, raising=False)
    compiled = smelt.compile(lambda x: x + eval("1 + 1"), backend="eager", fullgraph=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert torch.equal(compiled(ones()), ones() + 2)
    assert len(seen) >= 1 and {str(w.message) for w in seen} == {"from another thread"}


def test_warning_at_a_break_is_attributed_to_the_users_module() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            warnings.warn("with a source", source=x)  # which breaks the graph
        return x + 1

    def seen(call: Callable[..., Any]) -> list[tuple[str, int]]:
        globals().get("__warningregistry__", {}).clear()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("ignore")
            warnings.filterwarnings("default", module=__name__)
            for _ in range(3):
                call(ones())
        return [(w.filename, w.lineno) for w in found]

    assert len(seen(fn)) == 1
    assert seen(smelt.compile(fn)) == seen(fn)


def test_warnings_of_the_standard_library() -> None:
    def encoding(x: torch.Tensor) -> Any:
        return x + 1, locale.getdefaultlocale()[1]

    def deprecated(x: torch.Tensor) -> Any:
        return x + 1, sys.modules["typing.io"].IO is typing.IO  # type: ignore[attr-defined]

    def decorated(x: torch.Tensor) -> Any:
        return x + 1, typing.no_type_check_decorator(len)

    functions = (
        [encoding] if sys.version_info < (3, 14) else [decorated]
    )  # 3.14 takes the warning of `encoding` back
    functions += [deprecated] if "typing.io" in sys.modules else []
    for fn in functions:
        for action in ("always", "default"):
            want = shown(fn, action, *[(ones(),)] * 3)
            assert want and shown(smelt.compile(fn), action, *[(ones(),)] * 3) == want


@pytest.mark.parametrize("module", [__name__, "another"])
def test_filters_whose_module_is_a_string_as_those_of_the_interpreter(module):
    def fn(x):
        warnings.warn("of this module", DeprecationWarning, stacklevel=1)
        return x + 1

    def seen(function):
        globals().get("__warningregistry__", {}).clear()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("ignore")
            warnings.filters.insert(0, ("always", None, DeprecationWarning, module, 0))
            function(ones())
        return [str(w.message) for w in found]

    compiled = smelt.compile(fn, fullgraph=True)
    assert seen(compiled) == seen(fn)


# ------------------------------------------------------------------------------ functions of libraries that warn


def of_softmax(x: torch.Tensor) -> torch.Tensor:
    y = F.softmax(x)
    for _ in range(2):
        y = y + F.softmax(x)
    return y


def of_a_module(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Softmax()(x) + 1  # `stacklevel` reaches above its `forward`


def of_losses(x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(x, x[:1]) + F.l1_loss(x, x[:1], size_average=True)


def of_a_deprecated_function(x: torch.Tensor) -> torch.Tensor:
    return F.upsample(x[None], size=6)


def of_is_compiling(x: torch.Tensor) -> torch.Tensor:
    torch._utils.is_compiling()
    return x + 1


def printed(x: torch.Tensor) -> torch.Tensor:
    print("before")
    y = F.softmax(x)
    print("after")
    return y


@pytest.mark.parametrize("action", ["always", "default", "once", "ignore"])
@pytest.mark.parametrize(
    "fn", [of_softmax, of_a_module, of_losses, of_a_deprecated_function, of_is_compiling, printed]
)
def test_warnings_of_functions_of_torch(fn: Callable[..., Any], action: str) -> None:
    x = torch.ones(2, 3)
    want = agree(fn, action, (x,), (x,), (torch.ones(4, 3),))
    assert bool(want) == (action != "ignore")


def test_warnings_of_functions_of_torch_in_training() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert len(agree(lambda x: of_softmax(x).sum().backward(), "always", (x,), (x,), captured=False)) == 6


def test_warnings_of_functions_of_torch_around_a_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = F.softmax(x)
        smelt.graph_break()
        return y + F.softmax(x)

    x = torch.ones(2, 3)
    assert len(agree(fn, "default", (x,), (x,), captured=False)) == 2


def test_warnings_of_functions_of_torch_that_the_program_records() -> None:
    def fn(x: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            y = F.softmax(x)
        return y, [str(w.message) for w in found]

    x = torch.ones(2, 3)
    compiled = smelt.compile(fn, fullgraph=True)
    for _ in range(2):
        assert compiled(x)[1] == fn(x)[1] != []


def test_warnings_of_cpp_code_name_the_users_line() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.std(x[:1]) + 1

    want = shown(fn, "default", (ones(),))
    assert want and shown(smelt.compile(fn), "default", (ones(),), (ones(),)) == want


def test_warnings_of_functions_of_torch_as_errors() -> None:
    x = torch.ones(2, 3)
    compiled = smelt.compile(of_softmax)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        compiled(x)
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="Implicit dimension"):
                compiled(x)


def test_a_library_warns_of_sizes_that_data_decide():
    def fn(x):
        return torch.nn.functional.mse_loss(x[x > 0], torch.zeros(1))

    def texts(run, count):
        x = torch.tensor([1.0] * count + [-1.0] * (4 - count))
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            run(x)
        return [str(warning.message) for warning in shown]

    compiled = smelt.compile(fn)
    for count in (1, 2, 3, 2):
        assert texts(compiled, count) == texts(fn, count)
