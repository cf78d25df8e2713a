// Damages the file of a program again and again, and loads it: it must be refused, or compute the same. For
// tests/exported/test_cpp.py, and with -fsanitize=address for benchmarks/sweep_program_files.py.
//
//     fuzz_program FILE SCRATCH COUNT SEED
//
// The program takes one tensor of (rows, 4). Flipped bits and missing bytes break a checksum. Forged sections have checksums that
// hold; a forged program is loaded and inspected, but not called, since its machine code is what it is.
#include <ATen/ATen.h>
#include <smelt/program.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "exported/checksum.h"
#include "exported/tables.h"

extern "C" int mz_compress(unsigned char* to, unsigned long* to_bytes, const unsigned char* from, unsigned long from_bytes);

namespace {

constexpr size_t kHeader = 28, kEntry = 36;
using Random = std::mt19937;
using Sections = std::vector<std::pair<std::string, std::string>>;

template <class T>
T number(const std::string& data, size_t at) {
    T value;
    std::memcpy(&value, data.data() + at, sizeof value);
    return value;
}

template <class T>
void append(std::string& data, T value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
}

Sections sections_of(const std::string& data) {
    Sections found;
    for (size_t i = 0; i < number<uint32_t>(data, 12); ++i) {
        const size_t row = kHeader + i * kEntry;
        found.emplace_back(data.substr(row, 16), data.substr(number<uint64_t>(data, row + 16), number<uint64_t>(data, row + 24)));
    }
    return found;
}

// A file of these sections, with checksums that hold.
std::string file_of(const Sections& sections) {
    auto aligned = [](size_t n) { return (n + 63) / 64 * 64; };
    size_t at = aligned(kHeader + kEntry * sections.size());
    std::string rows, body;
    for (const auto& [name, data] : sections) {
        rows += name;
        append<uint64_t>(rows, at);
        append<uint64_t>(rows, data.size());
        append<uint32_t>(rows, smelt::exported::Checksum::of(data));
        body += data;
        body.resize(aligned(body.size()));
        at = aligned(at + data.size());
    }
    std::string header = "smeltprg";
    append<uint32_t>(header, smelt::exported::kFormatVersion);
    append<uint32_t>(header, static_cast<uint32_t>(sections.size()));
    append<uint64_t>(header, at);
    append<uint32_t>(header, smelt::exported::Checksum::of(rows, smelt::exported::Checksum::of(header + std::string(4, '\0'))));
    header += rows;
    header.resize(aligned(header.size()));
    return header + body;
}

size_t below(Random& random, size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
}

void damage(std::string& data, Random& random) {
    static const std::string kTags = "TFNidcsb([{tlmDoy/%zR";
    for (size_t i = 0; i < 1 + below(random, 3) && !data.empty(); ++i) {
        const size_t at = below(random, data.size());
        switch (below(random, 6)) {
            case 0:
                data[at] ^= static_cast<char>(1 << below(random, 8));
                break;
            case 1:
                data[at] = static_cast<char>(below(random, 256));
                break;
            case 2:
                data[at] = kTags[below(random, kTags.size())];
                break;
            case 3:
                data.insert(at, 1, static_cast<char>(below(random, 256)));
                break;
            case 4:
                data.erase(at, 1 + below(random, 4));
                break;
            default:
                data.replace(at, 9, data.substr(at / 2, 9));
        }
    }
}

// The same file with a section forged; sections of plans and code are damaged before they are packed.
std::string forged(const std::string& data, Random& random) {
    Sections sections = sections_of(data);
    auto& [name, content] = sections[below(random, sections.size())];
    const bool is_packed = name.rfind("plan.", 0) == 0 || name.rfind("code.", 0) == 0;
    if (!is_packed) {
        damage(content, random);
        return file_of(sections);
    }
    std::string plain(number<uint64_t>(content, 0), '\0');
    unsigned long size = plain.size();
    mz_uncompress(reinterpret_cast<unsigned char*>(plain.data()), &size,
                  reinterpret_cast<const unsigned char*>(content.data()) + 8, content.size() - 8);
    damage(plain, random);
    std::string packed(plain.size() + 1024, '\0');
    size = packed.size();
    mz_compress(reinterpret_cast<unsigned char*>(packed.data()), &size,
                reinterpret_cast<const unsigned char*>(plain.data()), plain.size());
    content.clear();
    append<uint64_t>(content, plain.size());
    content.append(packed, 0, size);
    return file_of(sections);
}

}  // namespace

int fuzz_program(char** argv) {
    std::ifstream file(argv[1], std::ios::binary);
    const std::string data{std::istreambuf_iterator<char>(file), {}};
    const at::Tensor x = at::rand({3, 4});
    const at::Tensor wanted = smelt::Program::load(argv[1])({x}).toTensor();
    Random random(std::stoul(argv[4]));
    int refused = 0, loaded = 0;
    for (int i = 0; i < std::stoi(argv[3]); ++i) {
        std::string changed = data;
        const size_t kind = below(random, 4);
        if (kind == 0)
            changed[below(random, changed.size())] ^= static_cast<char>(1 << below(random, 8));
        else if (kind == 1)
            changed.resize(below(random, changed.size()));
        else
            changed = forged(data, random);
        std::ofstream(argv[2], std::ios::binary) << changed;
        try {
            const smelt::Program program = smelt::Program::load(argv[2]);
            ++loaded;
            program.signature();
            program.parameters();
            program.methods();
            program.dynamic_sizes();
            program.input_checks();
            program.writes_state();
            if (kind < 2 && !program({x}).toTensor().equal(wanted)) {
                std::fprintf(stderr, "file %d gives another result\n", i);
                return 1;
            }
        } catch (const smelt::ProgramError&) {
            ++refused;
        }
    }
    std::printf("%d refused, %d loaded\n", refused, loaded);
    return 0;
}
