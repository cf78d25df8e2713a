#include "exported/program_file.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

#include "exported/checksum.h"
#include "exported/tables.h"
#include "exported/weights_file.h"
#include "torch.h"
#include "values/decode.h"

namespace smelt::exported {

using values::FormatError;

namespace {

constexpr std::string_view kMagic = "smeltprg";
constexpr size_t kHeader = 28, kEntry = 36, kName = 16, kAlignment = 64;

template <class T>
T number(std::string_view data, size_t at) {
    T value;
    std::memcpy(&value, data.data() + at, sizeof value);
    return value;
}

c10::DispatchKeySet keys_of(c10::Device device) {
    return c10::DispatchKeySet(device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
}

// A copy of a storage on a GPU.
c10::Storage on_device(const c10::Storage& storage, c10::Device device) {
    if (!device.is_cuda()) throw FormatError("a weight on an unknown device, " + device.str());
    auto bytes = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys_of(c10::kCPU),
                                                          c10::scalarTypeToTypeMeta(at::kByte));
    bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
    return bytes.to(device).storage();
}

// A view of a storage, with the layout checked.
at::Tensor viewed(const c10::Storage& storage, const Weight& w) {
    const auto width = static_cast<int64_t>(c10::elementSize(w.dtype));
    bool fits = w.shape.size() == w.stride.size() && w.offset >= 0;
    bool is_empty = false;
    int64_t last = w.offset;
    int64_t elements = 1;
    for (size_t d = 0; fits && d < w.shape.size(); ++d) {
        int64_t step = 0;
        fits = w.shape[d] >= 0 && w.stride[d] >= 0;
        fits = fits && !__builtin_mul_overflow(elements, std::max<int64_t>(w.shape[d], 1), &elements);
        is_empty |= w.shape[d] == 0;
        fits = fits && !__builtin_mul_overflow(std::max<int64_t>(w.shape[d] - 1, 0), w.stride[d], &step);
        fits = fits && !__builtin_add_overflow(last, step, &last);
    }
    if (!fits) throw FormatError("a weight that cannot be: " + w.name);
    if (!is_empty && last >= static_cast<int64_t>(storage.nbytes()) / width)
        throw FormatError("the weight " + w.name + " is outside of its storage");
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys_of(storage.device()),
                                                      c10::scalarTypeToTypeMeta(w.dtype));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(w.shape, w.stride, is_empty ? 0 : w.offset);
    return t;
}

}  // namespace

ProgramFile::ProgramFile(const std::string& path) : mapping_(std::make_shared<MappedFile>(path)) {
    const std::string_view data = mapping_->data();
    if (data.size() < kHeader || data.substr(0, kMagic.size()) != kMagic)
        throw FormatError("not a program of smelt");
    const auto version = number<uint32_t>(data, 8), count = number<uint32_t>(data, 12);
    if (version > kFormatVersion)
        throw FormatError("a program of format " + std::to_string(version) + "; this smelt reads formats " +
                          std::to_string(kOldestFormat) + " to " + std::to_string(kFormatVersion) +
                          ": load it with the smelt that wrote it or a newer one");
    if (version < kOldestFormat)
        throw FormatError("a program of format " + std::to_string(version) + "; this smelt reads formats " +
                          std::to_string(kOldestFormat) + " to " + std::to_string(kFormatVersion) +
                          ": export the model again");
    const auto length = number<uint64_t>(data, 16);
    if (length != data.size() || count > (data.size() - kHeader) / kEntry)
        throw FormatError(std::to_string(length) + " bytes are expected, " + std::to_string(data.size()) +
                          " are there");
    const std::string_view rows = data.substr(kHeader, count * kEntry);
    const uint32_t start = Checksum::of(std::string(4, '\0'), Checksum::of(data.substr(0, kHeader - 4)));
    if (Checksum::of(rows, start) != number<uint32_t>(data, kHeader - 4))
        throw FormatError("the header is damaged");
    for (size_t at = 0; at < rows.size(); at += kEntry) {
        std::string name(rows.substr(at, kName));
        name.erase(name.find_last_not_of('\0') + 1);
        const auto offset = number<uint64_t>(rows, at + kName),
                   bytes = number<uint64_t>(rows, at + kName + 8);
        if (offset > data.size() || bytes > data.size() - offset)
            throw FormatError("the section " + name + " is outside of the file");
        const std::string_view section = data.substr(offset, bytes);
        if (Checksum::of(section) != number<uint32_t>(rows, at + kName + 16))
            throw FormatError("the section " + name + " is damaged: its checksum does not hold");
        sections_[name] = section;
    }
}

std::string_view ProgramFile::section(const std::string& name) const {
    const auto found = sections_.find(name);
    if (found == sections_.end()) throw FormatError("no section " + name);
    return found->second;
}

namespace {

// The storage of a weight in another file: the first of `names`, which are tied, that the file has.
c10::Storage external_storage(const WeightsFile& file, const StateTable& table, const StateTable::Span& span,
                              size_t number) {
    const Weight* of = nullptr;
    std::string_view data;
    for (const Weight& w : table.weights) {
        if (w.storage != number || !file.has(w.name)) continue;
        const std::string_view found = file.values_of(w.name, w.dtype, w.shape);
        if (of && found != data)
            throw FormatError("the weights " + of->name + " and " + w.name +
                              " are one tensor in the program, and differ in " + file.name());
        of = &w;
        data = found;
    }
    if (!of) throw FormatError(file.name() + " has no " + span.external);
    return file.storage_of(*of, data);
}

}  // namespace

State ProgramFile::state(const std::optional<std::string>& other) const {
    const StateTable table = read_state(section("state"));
    const std::string_view weights = section("weights");
    if (reinterpret_cast<uintptr_t>(weights.data()) % kAlignment != 0)
        throw FormatError("weights that are not aligned");
    const bool is_external = std::any_of(table.spans.begin(), table.spans.end(),
                                         [](const StateTable::Span& span) { return !span.external.empty(); });
    if (is_external && !other)
        throw FormatError("its weights are in another file: pass the path of that file as weights");
    if (other && !is_external)
        throw FormatError(
            "this file holds its weights: load it without a file of weights, then call update_weights");
    std::optional<WeightsFile> file;
    if (other) file.emplace(*other);
    const c10::InferenceMode ordinary(false);  // later calls write these tensors, wherever they are
    std::vector<c10::Storage> storages;
    for (const StateTable::Span& span : table.spans) {
        if (!span.external.empty()) {
            storages.push_back(external_storage(*file, table, span, storages.size()));
        } else {
            if (span.offset > weights.size() || span.bytes > weights.size() - span.offset ||
                span.offset % kAlignment != 0)
                throw FormatError("a weight outside of its section");
            storages.push_back(storage_of(mapping_, weights.substr(span.offset, span.bytes)));
        }
        if (!span.device.is_cpu()) storages.back() = on_device(storages.back(), span.device);
    }
    State state;
    for (const Weight& w : table.weights) {
        if (w.storage >= storages.size()) throw FormatError("a weight that cannot be: " + w.name);
        state.emplace_back(w.name, viewed(storages[w.storage], w));
        if (!w.requires_grad) continue;
        if (!at::isFloatingType(w.dtype) && !at::isComplexType(w.dtype))
            throw FormatError("a weight that cannot be: " + w.name);
        state.back().second.set_requires_grad(true);
    }
    return state;
}

std::string unpacked(std::string_view section) {
    constexpr uint64_t kMost = uint64_t{1} << 31;
    if (section.size() < 8) throw FormatError("a section that cannot be unpacked: it ends early");
    const auto length = number<uint64_t>(section, 0);
    const std::string_view stream = section.substr(8);
    // A zlib stream expands to at most 1032 times its size.
    if (length > kMost || length > (stream.size() + 1) * 1032)
        throw FormatError("a section of another length than " + std::to_string(length) + " bytes");
    std::string data(length, '\0');
    unsigned long found = length;  // NOLINT: miniz's type
    const int status = mz_uncompress(reinterpret_cast<unsigned char*>(data.data()), &found,
                                     reinterpret_cast<const unsigned char*>(stream.data()), stream.size());
    if (status != 0) throw FormatError("a section that cannot be unpacked: error " + std::to_string(status));
    if (found != length)
        throw FormatError("a section of another length than " + std::to_string(length) + " bytes");
    return data;
}

}  // namespace smelt::exported
