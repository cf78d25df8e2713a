"""Which products of a schedule are generated, and which attention: each group is run by ATen and by generated kernels
in several tiles, on the device.

ATen's calls stay where no kernel takes at least 3% less time. Attention comes first; where it stays ATen's, its products are
contests of their own. What was found is remembered by this process, and on disk
beside compiled kernels, by all that decides it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import torch

from smelt.codegen.autotune import device_timing
from smelt.codegen.autotune.attention_candidates import attention_groups
from smelt.codegen.autotune.candidate_kinds import kind_of, source_of, tolerance_of
from smelt.codegen.autotune.candidate_plans import (
    Baseline,
    Contest,
    Run,
    Tensors,
    agree,
    contested,
    launch_item,
)
from smelt.codegen.autotune.gemm_candidates import Group, Variant, groups
from smelt.codegen.triton.block_gemm import Tile
from smelt.codegen.triton.compile import compile_products, keep
from smelt.codegen.triton.kernel_cache import made_by
from smelt.codegen.triton.kernel_source import Source
from smelt.codegen.triton.link import load_kernels, machine
from smelt.plan.machine_code import CompiledKernel
from smelt.plan.plan_items import LaunchItem
from smelt.runtime.disk_cache import Store, key_of
from smelt.runtime.fork_locks import TUNING, hold_at_fork
from smelt.schedule.schedule import Item, Schedule

GAIN = 0.97  # of ATen's time: a product that takes more is not worth it
_OURS = key_of(*(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))

log = logging.getLogger("smelt")


@dataclass(frozen=True)
class Choice:
    """For a group: which of its variants, in which tile."""

    variant: int
    tile: Tile


ATEN: Choice | None = None

_REMEMBERED: dict[str, Choice | None] = {}  # by key
_LOCK = hold_at_fork(threading.RLock(), TUNING)  # what runs beside a measurement is measured too


@dataclass(frozen=True)
class Tuner:
    """Selects generated products and attention for the schedules of one device."""

    baseline: Baseline
    arch: int
    threads: int
    store: Store | None

    def replaced(self, schedule: Schedule, aligned: Sequence[bool]) -> list[Item | LaunchItem]:
        """The items of `schedule`, with products where they are faster. `aligned`: buffers at multiples of 16 bytes."""
        if torch.cuda.is_current_stream_capturing():
            return list(schedule.items)
        with _LOCK:
            held: list[CompiledKernel] = []  # what was compiled and loaded to be measured
            found = attention_groups(schedule)
            choices = self._choices(schedule, found, aligned, held)
            replaced = {
                p for g, c in zip(found, choices) if c is not None for p in g.variants[c.variant].positions
            }
            products = groups(schedule, replaced)
            choices += self._choices(schedule, products, aligned, held)
            return self._with_products(schedule, [*found, *products], choices, aligned)

    # ---- choosing

    def _choices(
        self, schedule: Schedule, found: Sequence[Group], aligned: Sequence[bool], held: list[CompiledKernel]
    ) -> list[Choice | None]:
        keys = [self._key(schedule, group, aligned) for group in found]
        unknown = {key: group for key, group in zip(keys, found) if key not in _REMEMBERED}
        for key in list(unknown):
            if self.store and (content := self.store.get(key)) is not None:
                _REMEMBERED[key] = _from_bytes(content)
                del unknown[key]
        if unknown:
            held += self._tune(schedule, unknown, aligned)
        return [_REMEMBERED[key] for key in keys]

    def _key(self, schedule: Schedule, group: Group, aligned: Sequence[bool]) -> str:
        workers = self.baseline.device.costs.threads
        texts = [
            repr((tile, source.text, sorted(source.aligned)))
            for variant in group.variants
            for tile in kind_of(variant.product).tiles(variant.product, workers)[:1]
            for source in [_source(variant, tile, aligned)]
        ]
        compiler = made_by() or ()
        machine_ = machine(self._device().index or 0)
        versions = (torch.__version__, str(torch.version.cuda), str(torch.backends.cudnn.version()))
        what = contested(group.positions, schedule)
        settings = _eagers_settings()
        return key_of("product", _OURS, *versions, *compiler, *machine_, settings, what, *texts)

    def _device(self) -> torch.device:
        return self.baseline.device.memory.device

    def _tune(
        self, schedule: Schedule, unknown: Mapping[str, Group], aligned: Sequence[bool]
    ) -> list[CompiledKernel]:
        """Chooses for groups by their keys, equal ones once; what was chosen, as code."""
        held = []
        workers = self.baseline.device.costs.threads
        line = _Line(sys.stderr)
        sources = {
            f"{variant.product.name}_{number}_{v}_{t}": (
                key,
                Choice(v, tile),
                _source(variant, tile, aligned),
            )
            for number, (key, group) in enumerate(unknown.items())
            for v, variant in enumerate(group.variants)
            for t, tile in enumerate(kind_of(variant.product).tiles(variant.product, workers))
        }
        [kind] = {kind_of(group.variants[0].product).name for group in unknown.values()}
        line.show(f"{kind}, {len(unknown)} in {len(sources)} tiles: compiling")
        loaded = self._loaded({name: source for name, (_, _, source) in sources.items()})
        try:
            for number, (key, group) in enumerate(unknown.items()):
                line.show(f"{kind} {number + 1} of {len(unknown)}")
                candidates = {
                    choice: loaded[name]
                    for name, (k, choice, _) in sources.items()
                    if k == key and name in loaded
                }
                try:
                    found = self._fastest(schedule, group, candidates)
                except RuntimeError as error:  # no memory, mostly
                    name = group.variants[0].product.name
                    log.warning("smelt: the %s %s is not measured: %s", kind, name, error)
                    _REMEMBERED[key] = ATEN
                    continue
                _REMEMBERED[key] = found
                if found is not None:
                    held.append(candidates[found])
                self._keep(key, found, group, aligned, candidates)
        finally:
            line.clear()
        return held

    def _keep(
        self,
        key: str,
        found: Choice | None,
        group: Group,
        aligned: Sequence[bool],
        candidates: Mapping[Choice, CompiledKernel],
    ) -> None:
        """On disk: the choice, and its code."""
        if not self.store or not made_by():
            return
        self.store.put(key, json.dumps(found and [found.variant, *astuple(found.tile)]).encode())
        if found is not None:
            source = _source(group.variants[found.variant], found.tile, aligned)
            keep(source, candidates[found], self.arch, self.store)

    def _loaded(self, sources: Mapping[str, Source]) -> dict[str, CompiledKernel]:
        """Those that compile and that the device takes, as code on it."""
        compiled = compile_products(sources, self.arch, self.threads)
        index = self._device().index

        def load(code: CompiledKernel) -> bool:
            try:
                load_kernels([code.function], index)
            except RuntimeError as error:
                log.debug("smelt: %s is not loaded: %s", code.name, error)
                return False
            return True

        made = {name: code for name, code in compiled.items() if isinstance(code, CompiledKernel)}
        for name, code in compiled.items():
            if isinstance(code, Exception):
                log.debug("smelt: %s is not compiled: %s", name, code)
        with ThreadPoolExecutor(self.threads) as pool:
            loaded = list(pool.map(load, made.values()))
        return {name: code for (name, code), fits in zip(made.items(), loaded, strict=True) if fits}

    def _fastest(
        self, schedule: Schedule, group: Group, candidates: Mapping[Choice, CompiledKernel]
    ) -> Choice | None:
        with torch.no_grad(), torch.cuda.device(self._device()):
            contest = Contest(schedule, group, self.baseline)
            inputs = contest.inputs()
            by_aten = contest.by_aten()
            runs: dict[Choice | None, Run] = {ATEN: by_aten}
            expected = by_aten(inputs)
            for choice, code in candidates.items():
                variant = group.variants[choice.variant]
                run = _that_agrees(contest, variant, code, inputs, expected)
                if run is not None:
                    runs[choice] = run
            del expected
            calls = {choice: partial(run, inputs) for choice, run in runs.items()}
            took = device_timing.seconds(calls, ATEN, self._device())
        best = min(took, key=lambda choice: took[choice])
        chosen = best if took[best] <= GAIN * took[ATEN] else ATEN
        _say(group, took, best, chosen)
        return chosen

    # ---- what was chosen

    def _with_products(
        self,
        schedule: Schedule,
        found: Sequence[Group],
        choices: Sequence[Choice | None],
        aligned: Sequence[bool],
    ) -> list[Item | LaunchItem]:
        chosen = {
            f"{n}_{group.variants[choice.variant].product.name}": (
                group,
                group.variants[choice.variant],
                choice,
            )
            for n, (group, choice) in enumerate(zip(found, choices, strict=True))
            if choice is not None
        }
        sources = {name: _source(v, c.tile, aligned) for name, (_, v, c) in chosen.items()}
        items: dict[int, Item | LaunchItem] = dict(enumerate(schedule.items))
        codes = compile_products(sources, self.arch, self.threads, self.store) if sources else {}
        for name, (group, variant, _) in chosen.items():
            code = codes[name]
            if isinstance(code, Exception):
                log.warning("smelt: a kernel that was chosen is not compiled: %s", code)
                continue
            for position in variant.positions:
                del items[position]
            named = CompiledKernel(variant.product.name, code.function, code.extent, code.grain)
            items[group.last_position] = launch_item(named, variant)
        return [items[position] for position in sorted(items)]


def _eagers_settings() -> str:
    """What else decides how fast ATen is."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return str(
        [
            matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_fp16_accumulation,
            cudnn.benchmark,
            cudnn.deterministic,
        ]
    )


def _source(variant: Variant, tile: Tile, aligned: Sequence[bool]) -> Source:
    unaligned = frozenset(n for n, b in enumerate(variant.buffers) if not aligned[b])
    return source_of(variant.product, tile, unaligned)


def _that_agrees(
    contest: Contest, variant: Variant, code: CompiledKernel, inputs: Tensors, expected: torch.Tensor
) -> Run | None:
    """What runs the product, if it does, and gives what ATen gives."""
    try:
        run = contest.by_product(variant, code)
        found = run(inputs)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        log.debug("smelt: %s does not run: %s", code.name, error)
        return None
    if not agree(expected, found, tolerance_of(variant.product)):
        log.warning("smelt: the generated kernel %s is wrong and not used", code.name)
        return None
    return run


def _from_bytes(content: bytes) -> Choice | None:
    numbers = json.loads(content)
    return None if numbers is None else Choice(numbers[0], Tile(*numbers[1:]))


def _say(
    group: Group, took: Mapping[Choice | None, float], best: Choice | None, chosen: Choice | None
) -> None:
    p = group.variants[0].product
    what = f"{kind_of(p).name} {p.name} {p.sizes} {str(p.dtype).removeprefix('torch.')}"
    generated = "no other is faster"
    if best is not None:
        t = best.tile
        read = ", operands computed as they are read" if best.variant else ""
        generated = (
            f"{took[best] * 1e6:.1f} us in {t.x}×{t.r}×{t.k}, {t.warps} warps, {t.stages} stages{read}"
        )
    outcome = "ATen stays" if chosen is ATEN else "generated"
    log.info("smelt: %s: ATen %.1f us, %s: %s", what, took[ATEN] * 1e6, generated, outcome)


class _Line:
    """The state of the tuning, on a terminal only."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream if stream.isatty() else None

    def show(self, text: str) -> None:
        if self.stream:
            self.stream.write(f"\r\x1b[Ksmelt: max-autotune: {text}")
            self.stream.flush()

    def clear(self) -> None:
        if self.stream:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
