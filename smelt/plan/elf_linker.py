"""Machine code of a plan in memory, without LLVM: links the object files of its libraries into one executable mapping.

Kernels are compiled for the large code model, so they refer to constants, to each other and to the C library by 64-bit
absolute addresses. That leaves three kinds of relocations. Object files of other machines, and other relocations, raise
PlanError; LLVM's linker (`codegen/llvm/link.py`) takes what this one refuses.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from smelt.errors import PlanError
from smelt.plan.machine_code import Function, Library

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_RELOCATION = struct.Struct("<QQq")  # Elf64_Rela
_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8  # types of sections
_ALLOCATED = 2  # a section's flag
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # in position of a symbol's section
_ADDRESS, _RELATIVE, _CALL = 1, 2, 4  # R_X86_64_64, _PC32, _PLT32
_UNUSED = (".eh_frame", ".note")  # kernels raise nothing


@dataclass
class _Section:
    kind: int
    flags: int
    data: bytes
    size: int
    align: int
    link: int
    info: int
    name: str
    offset: int | None = None  # in the mapping


@dataclass(eq=False)
class LinkedCode:
    """The machine code of libraries, linked and executable as long as this object lives."""

    _memory: mmap.mmap
    _start: int
    _exports: Mapping[Library, Mapping[str, int]] = field(repr=False)

    def address_of(self, function: Function) -> int:
        """The address of a function of one of the libraries."""
        return self._start + self._exports[function.library][function.name]


def link(libraries: Iterable[Library]) -> LinkedCode:
    """Link the object files of `libraries`, importers last. Raises PlanError for object files that need another linker, are
    damaged, or refer to unknown symbols."""
    try:
        return _link(list(libraries))
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, OSError) as error:
        raise PlanError(f"a damaged object file: {error}") from error


def _link(libraries: list[Library]) -> LinkedCode:
    objects = {library: [_sections(image) for image in library.objects] for library in libraries}
    size = 0
    for section in (s for parts in objects.values() for part in parts for s in part):
        if section.flags & _ALLOCATED and not section.name.startswith(_UNUSED) and section.size:
            if section.align & (section.align - 1) or section.align > mmap.PAGESIZE:
                raise PlanError(f"a section aligned to {section.align} bytes")
            section.offset = -(-size // max(section.align, 1)) * max(section.align, 1)
            size = section.offset + section.size
    memory = mmap.mmap(-1, max(size, 1), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    # An address of the mapping; the array is dropped, so that the mapping can be closed when the code dies.
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    exports: dict[Library, dict[str, int]] = {}
    for library, parts in objects.items():
        imported = {name: exports[other][name] for name, other in library.imports.items()}
        defined = dict(imported)
        for part in parts:
            defined |= _definitions(part)
        for part in parts:
            _copy(part, memory, base, defined)
        missing = [name for name in library.exports if name not in defined]
        if missing:
            raise PlanError(f"object files without {', '.join(missing)}")
        exports[library] = {name: defined[name] for name in library.exports}
    _protect(base, max(size, 1))
    code = LinkedCode(memory, base, exports)
    # Not at the exit of the process: other threads may be running the code.
    weakref.finalize(code, memory.close).atexit = False
    return code


def _sections(image: bytes) -> list[_Section]:
    header = _HEADER.unpack_from(image)
    if not header[0].startswith(_MAGIC) or header[1:3] != (_RELOCATABLE, _X86_64):
        raise PlanError("object files for another machine than x86-64, or none")
    start, width, count, names = header[6], header[11], header[12], header[13]
    rows = [_SECTION.unpack_from(image, start + i * width) for i in range(count)]
    sections = []
    for name, kind, flags, _, at, size, linked, info, align, _ in rows:
        data = b"" if kind == _ZEROS else image[at : at + size]
        if kind != _ZEROS and len(data) != size:
            raise PlanError("an object file that ends early")
        sections.append(
            _Section(kind, flags, data, size, align, linked, info, _text(image, rows[names][4] + name))
        )
    return sections


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode() if b"\0" in data[at:] else ""


def _symbols(sections: list[_Section]) -> list[tuple[str, int, int]]:
    """Name, section and value of each symbol."""
    for section in sections:
        if section.kind == _SYMBOLS:
            names = sections[section.link].data
            return [
                (_text(names, name), where, value)
                for name, _, _, where, value, _ in _SYMBOL.iter_unpack(section.data)
            ]
    return []


def _definitions(sections: list[_Section]) -> dict[str, int]:
    """The offsets of the named symbols that an object file defines."""
    return {
        name: offset
        for name, where, value in _symbols(sections)
        if name and (offset := _offset(sections, where, value)) is not None
    }


def _offset(sections: list[_Section], where: int, value: int) -> int | None:
    if where in (_UNDEFINED, _ABSOLUTE, _COMMON) or sections[where].offset is None:
        return None
    start = sections[where].offset
    assert start is not None
    return start + value


def _copy(sections: list[_Section], memory: mmap.mmap, base: int, defined: Mapping[str, int]) -> None:
    """Copies an object file's sections into the mapping, and writes the addresses that they refer to."""
    symbols = _symbols(sections)
    for section in sections:
        if section.offset is not None and section.data:
            memory[section.offset : section.offset + section.size] = section.data
    for section in sections:
        if section.kind != _RELOCATIONS or sections[section.info].offset is None:
            continue
        target = sections[section.info]
        assert target.offset is not None
        for at, info, addend in _RELOCATION.iter_unpack(section.data):
            name, where, value = symbols[info >> 32]
            offset = _offset(sections, where, value)
            found = defined.get(name) if offset is None else offset
            address = _of_process(name) if found is None else base + found
            _relocate(memory, base, target, at, info & 0xFFFFFFFF, address + addend)


def _relocate(memory: mmap.mmap, base: int, target: _Section, at: int, kind: int, value: int) -> None:
    assert target.offset is not None
    width = 8 if kind == _ADDRESS else 4
    if at + width > target.size:
        raise PlanError("a relocation outside of its section")
    position = target.offset + at
    if kind == _ADDRESS:
        struct.pack_into("<Q", memory, position, value & (1 << 64) - 1)
    elif kind in (_RELATIVE, _CALL) and -(1 << 31) <= value - base - position < 1 << 31:
        struct.pack_into("<i", memory, position, value - base - position)
    else:
        raise PlanError(f"a relocation of kind {kind}, which needs another linker")


def _of_process(name: str) -> int:
    """The address of a function of the C library."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise PlanError(f"this process has no function {name}") from None


def _protect(base: int, size: int) -> None:
    """Makes the mapping executable, and read-only."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise PlanError(f"memory cannot be made executable (error {ctypes.get_errno()})")
