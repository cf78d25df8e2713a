#include "plan/elf_linker.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "values/value.h"

namespace smelt::plan {

using values::FormatError;

namespace elf {

using Offsets = std::unordered_map<std::string, size_t>;

constexpr std::string_view kUnused[] = {".eh_frame", ".note"};  // kernels raise nothing

struct Section {
    Elf64_Shdr header;
    std::string_view data;         // empty for zeros
    std::optional<size_t> offset;  // in the mapping
};

struct Symbol {
    std::string name;
    uint16_t section;
    uint64_t value;
};

// A table of T at an offset of `image`.
template <class T>
std::vector<T> table(std::string_view image, uint64_t at, uint64_t count) {
    if (at > image.size() || count > (image.size() - at) / sizeof(T))
        throw FormatError("a damaged object file: a table ends outside of it");
    std::vector<T> rows(count);
    if (count) std::memcpy(rows.data(), image.data() + at, count * sizeof(T));
    return rows;
}

inline std::string_view text(std::string_view data, uint64_t at) {
    if (at >= data.size()) return {};
    const std::string_view rest = data.substr(at);
    const size_t end = rest.find('\0');
    return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
}

// The sections and symbols of one object file, with every reference checked against the bounds of the file.
class ObjectFile {
  public:
    explicit ObjectFile(std::string_view image) {
        const Elf64_Ehdr header = table<Elf64_Ehdr>(image, 0, 1)[0];
        const bool is_for_this = std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
                                 header.e_ident[EI_CLASS] == ELFCLASS64 &&
                                 header.e_ident[EI_DATA] == ELFDATA2LSB && header.e_type == ET_REL &&
                                 header.e_machine == EM_X86_64 && header.e_shentsize == sizeof(Elf64_Shdr);
        if (!is_for_this) throw FormatError("object files for another machine than x86-64, or none");
        for (const Elf64_Shdr& row : table<Elf64_Shdr>(image, header.e_shoff, header.e_shnum)) {
            std::string_view data;
            if (row.sh_type != SHT_NOBITS) {
                if (row.sh_offset > image.size() || row.sh_size > image.size() - row.sh_offset)
                    throw FormatError("a damaged object file: a section ends outside of it");
                data = image.substr(row.sh_offset, row.sh_size);
            }
            sections.push_back({row, data, {}});
        }
        names_ = section(header.e_shstrndx).data;
        read_symbols();
    }

    const Section& section(size_t index) const {
        if (index >= sections.size()) throw FormatError("a damaged object file: no such section");
        return sections[index];
    }

    bool is_loaded(const Section& s) const {
        if (!(s.header.sh_flags & SHF_ALLOC) || s.header.sh_size == 0) return false;
        const std::string_view name = text(names_, s.header.sh_name);
        return std::none_of(std::begin(kUnused), std::end(kUnused),
                            [&](std::string_view unused) { return name.substr(0, unused.size()) == unused; });
    }

    // The offset of a symbol in the mapping, if this file defines it.
    std::optional<size_t> offset_of(const Symbol& symbol) const {
        if (symbol.section == SHN_UNDEF || symbol.section >= SHN_LORESERVE) return {};
        const Section& s = section(symbol.section);
        if (!s.offset) return {};
        if (symbol.value > s.header.sh_size)
            throw FormatError("a damaged object file: a symbol outside of its section");
        return *s.offset + symbol.value;
    }

    const Symbol& symbol(size_t index) const {
        if (index >= symbols.size()) throw FormatError("a damaged object file: no such symbol");
        return symbols[index];
    }

    std::vector<Section> sections;
    std::vector<Symbol> symbols;

  private:
    void read_symbols() {
        for (const Section& s : sections) {
            if (s.header.sh_type != SHT_SYMTAB) continue;
            const std::string_view names = section(s.header.sh_link).data;
            for (const Elf64_Sym& row : table<Elf64_Sym>(s.data, 0, s.data.size() / sizeof(Elf64_Sym)))
                symbols.push_back({std::string(text(names, row.st_name)), row.st_shndx, row.st_value});
            return;
        }
    }

    std::string_view names_;
};

// The address of a function of the C library.
inline uint64_t address_in_process(const std::string& name) {
    void* found = name.empty() ? nullptr : dlsym(RTLD_DEFAULT, name.c_str());
    if (!found) throw FormatError("this process has no function " + name);
    return reinterpret_cast<uint64_t>(found);
}

}  // namespace elf

using elf::ObjectFile;
using elf::Offsets;
using elf::Section;
using elf::Symbol;

class Linker {
  public:
    explicit Linker(LinkedCode& code) : code_(code) {}

    void link(const std::vector<Library>& libraries) {
        for (const Library& library : libraries) {
            auto& files = files_.emplace_back();
            for (const std::string& image : library.objects) files.emplace_back(image);
        }
        place();
        map();
        for (size_t i = 0; i < libraries.size(); ++i) load(libraries[i], i);
        if (mprotect(code_.memory_, code_.size_, PROT_READ | PROT_EXEC) != 0)
            throw FormatError(std::string("memory cannot be made executable: ") + std::strerror(errno));
    }

  private:
    void place() {
        const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
        for (auto& files : files_)
            for (ObjectFile& file : files)
                for (Section& s : file.sections) {
                    if (!file.is_loaded(s)) continue;
                    const uint64_t align = std::max<uint64_t>(s.header.sh_addralign, 1);
                    if ((align & (align - 1)) || align > page)
                        throw FormatError("a section aligned to " + std::to_string(align) + " bytes");
                    size_ = (size_ + align - 1) / align * align;
                    if (s.header.sh_size > kMost - size_)
                        throw FormatError("object files of more than 1 GiB");
                    s.offset = size_;
                    size_ += s.header.sh_size;
                }
    }

    void map() {
        const size_t size = std::max<size_t>(size_, 1);
        void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw FormatError("no memory for machine code");
        code_.memory_ = static_cast<char*>(memory);
        code_.size_ = size;
    }

    void load(const Library& library, size_t position) {
        Offsets defined;
        for (const auto& [name, other] : library.imports) {
            if (other >= position) throw FormatError("a library that imports from a later one");
            const auto found = code_.exports_[other].find(name);
            if (found == code_.exports_[other].end()) throw FormatError("a library without " + name);
            defined[name] = found->second;
        }
        for (const ObjectFile& file : files_[position])
            for (const Symbol& symbol : file.symbols)
                if (const auto offset = file.offset_of(symbol); offset && !symbol.name.empty())
                    defined[symbol.name] = *offset;
        for (const ObjectFile& file : files_[position]) copy(file, defined);
        Offsets& exports = code_.exports_.emplace_back();
        for (const std::string& name : library.exports) {
            const auto found = defined.find(name);
            if (found == defined.end()) throw FormatError("object files without " + name);
            exports[name] = found->second;
        }
    }

    // Copies the sections of a file into the mapping, and writes the addresses that they refer to.
    void copy(const ObjectFile& file, const Offsets& defined) {
        for (const Section& s : file.sections)
            if (s.offset && !s.data.empty())
                std::memcpy(code_.memory_ + *s.offset, s.data.data(), s.data.size());
        for (const Section& s : file.sections) {
            if (s.header.sh_type != SHT_RELA) continue;
            const Section& target = file.section(s.header.sh_info);
            if (!target.offset) continue;
            for (const Elf64_Rela& r : elf::table<Elf64_Rela>(s.data, 0, s.data.size() / sizeof(Elf64_Rela)))
                relocate(target, r, address_of(file, file.symbol(ELF64_R_SYM(r.r_info)), defined));
        }
    }

    uint64_t address_of(const ObjectFile& file, const Symbol& symbol, const Offsets& defined) const {
        std::optional<size_t> offset = file.offset_of(symbol);
        if (!offset) {
            const auto found = defined.find(symbol.name);
            if (found == defined.end()) return elf::address_in_process(symbol.name);
            offset = found->second;
        }
        return reinterpret_cast<uint64_t>(code_.memory_) + *offset;
    }

    void relocate(const Section& target, const Elf64_Rela& r, uint64_t address) {
        const uint32_t kind = ELF64_R_TYPE(r.r_info);
        const size_t width = kind == R_X86_64_64 ? 8 : 4;
        if (r.r_offset > target.header.sh_size || width > target.header.sh_size - r.r_offset)
            throw FormatError("a relocation outside of its section");
        char* place = code_.memory_ + *target.offset + r.r_offset;
        const uint64_t value = address + static_cast<uint64_t>(r.r_addend);
        if (kind == R_X86_64_64) {
            std::memcpy(place, &value, 8);
            return;
        }
        const auto distance = static_cast<int64_t>(value - reinterpret_cast<uint64_t>(place));
        const bool is_near = distance >= INT32_MIN && distance <= INT32_MAX;
        if ((kind != R_X86_64_PC32 && kind != R_X86_64_PLT32) || !is_near)
            throw FormatError("a relocation of kind " + std::to_string(kind) +
                              ", which needs another linker");
        const auto written = static_cast<int32_t>(distance);
        std::memcpy(place, &written, 4);
    }

    static constexpr size_t kMost = size_t{1} << 30;
    LinkedCode& code_;
    std::vector<std::vector<ObjectFile>> files_;  // by library
    size_t size_ = 0;
};

LinkedCode::LinkedCode(const std::vector<Library>& libraries) {
    try {
        Linker(*this).link(libraries);
    } catch (...) {
        if (memory_) munmap(memory_, size_);
        throw;
    }
}

LinkedCode::~LinkedCode() {
    munmap(memory_, size_);
}

void* LinkedCode::address_of(size_t library, const std::string& name) const {
    if (library >= exports_.size()) throw FormatError("no library " + std::to_string(library));
    const auto found = exports_[library].find(name);
    if (found == exports_[library].end()) throw FormatError("a library without the function " + name);
    return memory_ + found->second;
}

}  // namespace smelt::plan
