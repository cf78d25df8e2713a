"""The driver's code for a device, kept on disk: linked once, loaded by whoever comes next."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

import smelt
from smelt import _native, targets
from smelt.codegen.triton import link
from smelt.codegen.triton.link import kernel_of, load_early, load_kernels
from smelt.plan.machine_code import Block, Function, Library, Processor
from smelt.runtime.disk_cache import Store
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "smelt"), 1 << 20)


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What the linker was given."""
    given: list[bytes] = []
    link_ptx = _native.link_ptx
    monkeypatch.setattr(
        _native, "link_ptx", lambda ptx, device: (given.append(ptx), link_ptx(ptx, device))[1]
    )
    yield given


def function(text: str = "", address: int = 1) -> Function:
    """One that may be loaded, not launched. `text` follows what the driver reads, as a comment does."""
    image = f"simulated {address} p {text}".encode()
    name = "f" + hashlib.sha256(image).hexdigest()[:8]
    return Function(Library(Processor("simulated", "simulated", ""), (image,), (name,)), name, Block(32, 0))


def contents(store: Store) -> list[bytes]:
    return [store.get(path.name) for path in Path(store.folder).iterdir()]


def again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    monkeypatch.setattr(link, "_KERNELS", {})


def test_code_is_linked_once(store: Store, linked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = function("one"), function("two")
    load_kernels([one, two, one], 0, store)
    load_kernels([one, two], 0, store)
    assert sorted(linked) == sorted(f.library.objects[0] for f in (one, two))
    assert sorted(contents(store)) == sorted(b"linked " + image + b"\0" for image in linked)
    again(monkeypatch)
    load_kernels([one, two], 0, store)
    assert len(linked) == 2


def test_devices_of_one_kind_share_it(store: Store, linked: list[bytes]) -> None:
    load_kernels([function("for both")], 0, store)
    load_kernels([function("for both")], 1, store)
    assert len(linked) == 1


@pytest.mark.parametrize("what", ("driver", "processor"))
def test_driver_and_device_are_part_of_the_key(
    store: Store, linked: list[bytes], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    load_kernels([function(what)], 0, store)
    again(monkeypatch)
    monkeypatch.setattr(link, what, lambda *device: "another")
    load_kernels([function(what)], 0, store)
    assert len(linked) == 2 == len(contents(store))


def test_code_that_the_driver_refuses_is_dropped(
    store: Store, linked: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_kernels([function("dropped")], 0, store)
    [path] = Path(store.folder).iterdir()
    store.put(path.name, b"of a driver that lied about its version")
    again(monkeypatch)
    load_kernels([function("dropped")], 0, store)
    assert not path.exists() and len(linked) == 1


def test_without_a_linker_the_driver_loads_ptx(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ptx: bytes, device: int) -> bytes:
        raise RuntimeError("no linker")

    monkeypatch.setattr(_native, "link_ptx", fail)
    load_kernels([function("by itself")], 0, store)
    assert store.size() == 0


def test_errors_are_the_drivers(store: Store) -> None:
    wrong = Function(Library(Processor("", "", ""), (b"no image",), ("f",)), "f", Block(32, 0))
    for kept in (store, None):
        with pytest.raises(RuntimeError, match="loading the kernel f failed: CUDA_ERROR_INVALID_IMAGE"):
            load_kernels([wrong], 0, kept)
    with pytest.raises(RuntimeError, match="compiling PTX failed: CUDA_ERROR_INVALID_PTX"):
        _native.link_ptx(b"no image", 0)
    assert store.size() == 0


def test_errors_of_loading_early_are_told_later(store: Store) -> None:
    wrong = Function(Library(Processor("", "", ""), (b"no image at all",), ("f",)), "f", Block(32, 0))
    load_early(wrong, 0, store)
    with pytest.raises(RuntimeError, match="loading the kernel f failed: CUDA_ERROR_INVALID_IMAGE"):
        load_kernels([wrong], 0, store)


def test_what_is_compiled_is_loaded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when all of the graph has been compiled."""
    loaded = []

    def load(functions: Iterable[Function], device: int, store: Store | None) -> None:
        loaded.extend(kernel_of(f).is_loaded(device) for f in functions)
        load_kernels(functions, device, store)

    monkeypatch.setattr(targets.cuda, "load_kernels", load)
    x = torch.randn(6, device="cuda")
    torch.testing.assert_close(smelt.compile(lambda x: x.cos() * 5 + 7)(x), x.cos() * 5 + 7)
    assert loaded == [True]


def test_the_version_is_the_drivers() -> None:
    assert _native.driver_version() == 12080


def test_compiled_functions_keep_their_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x = torch.randn(5, device="cuda")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "off"))
    off = smelt.compile(lambda x: x.sin() * 2 + 7, options={"kernel_cache": False})
    torch.testing.assert_close(off(x), x.sin() * 2 + 7)
    assert not (tmp_path / "off").exists()
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "on"))
    cuda.forget_launches()
    compiled = smelt.compile(lambda x: x.sin() * 3 + 7)
    torch.testing.assert_close(compiled(x), x.sin() * 3 + 7)
    assert len(cuda.launches()) == 1 == len(list((tmp_path / "on").iterdir()))
