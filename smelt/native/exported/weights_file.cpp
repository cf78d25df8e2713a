#include "exported/weights_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <array>
#include <cstring>
#include <utility>

#include "torch.h"
#include "values/decode.h"
#include "values/value.h"

namespace smelt::exported {

using values::FormatError;

namespace {

constexpr uint64_t kMostHeader = 100'000'000;  // as in the library safetensors

const std::array<std::pair<const char*, c10::ScalarType>, 16> kDtypes{{
    {"BOOL", at::kBool},
    {"U8", at::kByte},
    {"I8", at::kChar},
    {"I16", at::kShort},
    {"I32", at::kInt},
    {"I64", at::kLong},
    {"U16", at::kUInt16},
    {"U32", at::kUInt32},
    {"U64", at::kUInt64},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F32", at::kFloat},
    {"F64", at::kDouble},
    {"C64", at::kComplexFloat},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
}};

[[noreturn]] void refuse(const std::string& what) {
    throw FormatError(what);
}

std::string text_of(std::string_view dtype, const std::vector<int64_t>& shape) {
    std::string name(dtype);
    for (const auto& [known, of] : kDtypes)
        if (dtype == known) name = "torch." + std::string(values::name_of(of));
    std::string text = name + " of (";
    for (size_t d = 0; d < shape.size(); ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
    return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace

// Reads the header, which is JSON. The numbers of shapes and offsets are natural; other values are skipped.
class WeightsFile::Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {}

    std::map<std::string, Tensor> tensors() {
        std::map<std::string, Tensor> found;
        members([&](const std::string& name) {
            if (name == "__metadata__")
                skip(0);
            else if (!found.emplace(name, tensor()).second)
                refuse("two tensors have one name");
        });
        spaces();
        if (at_ != text_.size()) refuse("there is text after the JSON object of the header");
        return found;
    }

  private:
    Tensor tensor() {
        Tensor t;
        int seen = 0;
        members([&](const std::string& key) {
            if (key == "dtype") {
                t.dtype = string();
                seen |= 1;
            } else if (key == "shape") {
                items([&] { t.shape.push_back(static_cast<int64_t>(number())); });
                seen |= 2;
            } else if (key == "data_offsets") {
                std::vector<uint64_t> ends;
                items([&] { ends.push_back(number()); });
                if (ends.size() != 2) refuse("data_offsets must be two numbers");
                t.begin = ends[0];
                t.end = ends[1];
                seen |= 4;
            } else {
                skip(0);
            }
        });
        if (seen != 7) refuse("a tensor without dtype, shape or data_offsets");
        return t;
    }

    void spaces() {
        while (at_ < text_.size() && kSpaces.find(text_[at_]) != std::string_view::npos) ++at_;
    }
    char next() {
        spaces();
        if (at_ == text_.size()) refuse("the header ends early");
        return text_[at_];
    }
    bool take(char c) {
        if (next() != c) return false;
        ++at_;
        return true;
    }
    void expect(char c) {
        if (!take(c)) refuse(std::string("a ") + c + " is missing in the header");
    }

    template <class Member>
    void members(Member member) {
        expect('{');
        if (take('}')) return;
        do {
            if (next() != '"') refuse("a name is missing in the header");
            const std::string name = string();
            expect(':');
            member(name);
        } while (take(','));
        expect('}');
    }
    template <class Item>
    void items(Item item) {
        expect('[');
        if (take(']')) return;
        do item();
        while (take(','));
        expect(']');
    }

    uint64_t number() {
        next();
        const size_t begin = at_;
        uint64_t value = 0;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
            value = value * 10 + static_cast<uint64_t>(text_[at_] - '0');
        if (at_ == begin || at_ - begin > 18)
            refuse("a natural number of at most 18 digits is missing in the header");
        return value;
    }

    std::string string() {
        expect('"');
        std::string made;
        while (true) {
            if (at_ == text_.size()) refuse("the header ends early");
            const char c = text_[at_++];
            if (c == '"') return made;
            if (c != '\\')
                made += c;
            else
                escape(made);
        }
    }

    void escape(std::string& made) {
        if (at_ == text_.size()) refuse("the header ends early");
        const char c = text_[at_++];
        static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
        if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
            made += kTo[i];
            return;
        }
        if (c != 'u') refuse("an unknown escape sequence in a name");
        uint32_t code = unit();
        if (code >= 0xD800 && code < 0xDC00) {  // the first of a surrogate pair
            if (text_.substr(at_, 2) != "\\u") refuse("half of a surrogate pair in a name");
            at_ += 2;
            const uint32_t low = unit();
            if (low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair in a name");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        add(made, code);
    }

    uint32_t unit() {
        uint32_t code = 0;
        for (int i = 0; i < 4; ++i) {
            const char c = at_ < text_.size() ? text_[at_++] : ' ';
            static constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
            const size_t digit = kDigits.find(c);
            if (digit == std::string_view::npos) refuse("an unknown escape sequence in a name");
            code = code * 16 + static_cast<uint32_t>(digit % 16);
        }
        return code;
    }

    // Adds a character as UTF-8.
    static void add(std::string& made, uint32_t code) {
        if (code < 0x80) {
            made += static_cast<char>(code);
            return;
        }
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        static constexpr std::array<uint32_t, 4> kFirst{0, 0xC0, 0xE0, 0xF0};
        made += static_cast<char>(kFirst[static_cast<size_t>(more)] | (code >> (6 * more)));
        for (int i = more - 1; i >= 0; --i) made += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
    }

    void skip(int depth) {
        if (depth > 32) refuse("the header is nested too deep");
        const char c = next();
        if (c == '"') {
            string();
        } else if (c == '{') {
            members([&](const std::string&) { skip(depth + 1); });
        } else if (c == '[') {
            items([&] { skip(depth + 1); });
        } else {
            const size_t begin = at_;
            while (at_ < text_.size() && kEnds.find(text_[at_]) == std::string_view::npos) ++at_;
            if (at_ == begin) refuse("a value is missing in the header");
        }
    }

    static constexpr std::string_view kSpaces = " \t\r\n", kEnds = ",]} \t\r\n";

    std::string_view text_;
    size_t at_ = 0;
};

WeightsFile::WeightsFile(const std::string& path) : path_(path), file_(std::make_shared<MappedFile>(path)) {
    try {
        const std::string_view all = file_->data();
        uint64_t length = 0;
        if (all.size() < sizeof length) refuse("it ends before its header");
        std::memcpy(&length, all.data(), sizeof length);
        if (length > kMostHeader || length > all.size() - sizeof length)
            refuse("its header is longer than the file or than 100 MB");
        data_ = all.substr(sizeof length + length);
        tensors_ = Reader(all.substr(sizeof length, length)).tensors();
    } catch (const FormatError& error) {
        throw FormatError(name() + " is not a safetensors file: " + error.what());
    }
}

std::string_view WeightsFile::values_of(const std::string& name, c10::ScalarType dtype,
                                        const std::vector<int64_t>& shape) const {
    const Tensor& t = tensors_.at(name);
    std::string wanted;
    for (const auto& [known, of] : kDtypes)
        if (of == dtype) wanted = known;
    if (t.dtype != wanted || t.shape != shape)
        throw FormatError("the weight " + name + " must be " + text_of(wanted, shape) + ", " + this->name() +
                          " has " + text_of(t.dtype, t.shape));
    uint64_t bytes = c10::elementSize(dtype);
    for (const int64_t n : shape)
        if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(n), &bytes)) bytes = UINT64_MAX;
    if (t.begin > t.end || t.end > data_.size() || t.end - t.begin != bytes)
        throw FormatError("the weight " + name + " is outside of " + this->name());
    return data_.substr(t.begin, bytes);
}

c10::Storage WeightsFile::storage_of(const Weight& w, std::string_view values) const {
    int64_t inner = 1;
    bool is_row_major = w.stride.size() == w.shape.size() && w.offset == 0;
    for (size_t d = w.shape.size(); is_row_major && d-- > 0;) {
        is_row_major = w.shape[d] == 1 || w.stride[d] == inner;
        inner *= w.shape[d];
    }
    if (is_row_major && reinterpret_cast<uintptr_t>(values.data()) % c10::elementSize(w.dtype) == 0)
        return exported::storage_of(file_, values);
    const BelowAutograd beneath;
    if (w.stride.size() != w.shape.size() || w.offset != 0)
        throw FormatError("the weight " + w.name + " has an impossible layout");
    std::vector<int64_t> row_major(w.shape.size(), 1);
    for (size_t d = w.shape.size(); d-- > 1;) row_major[d - 1] = row_major[d] * w.shape[d];
    at::Tensor aligned = at::empty_strided(w.shape, row_major, w.dtype);
    if (!values.empty()) std::memcpy(aligned.mutable_data_ptr(), values.data(), values.size());
    at::Tensor made = at::empty_strided(w.shape, w.stride, w.dtype);
    made.copy_(aligned);
    return made.storage();
}

}  // namespace smelt::exported
