// Weights beside a program: a mapped safetensors file.
//
//     file := length of the header (8 bytes, little-endian), header, data
//     header: JSON, for each tensor {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}; tensors are row-major
#pragma once
#include <c10/core/ScalarType.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exported/mapped_file.h"
#include "exported/tables.h"

namespace smelt::exported {

class WeightsFile {
  public:
    // Throws std::system_error if the file cannot be read, FormatError for another or a damaged file.
    explicit WeightsFile(const std::string& path);

    // The file in messages.
    std::string name() const { return "the file of weights " + path_; }
    bool has(const std::string& name) const { return tensors_.count(name) > 0; }
    // The bytes of the tensor `name`, which the file must have. Throws FormatError for another dtype or shape.
    std::string_view values_of(const std::string& name, c10::ScalarType dtype,
                               const std::vector<int64_t>& shape) const;
    // The memory of a weight with these values: the mapped file, or a copy where the layout differs.
    c10::Storage storage_of(const Weight& w, std::string_view values) const;

  private:
    struct Tensor {
        std::string dtype;
        std::vector<int64_t> shape;
        uint64_t begin = 0, end = 0;
    };
    class Reader;

    std::string path_;
    std::shared_ptr<MappedFile> file_;
    std::string_view data_;
    std::map<std::string, Tensor> tensors_;
};

}  // namespace smelt::exported
