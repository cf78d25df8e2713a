// The file of an exported program (docs/export.md has its grammar): sections with checksums, read by mmap.
//
// Every byte but the padding between sections is covered by a checksum, which is verified before the file is used. Nothing of
// the file is executed here.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exported/mapped_file.h"

namespace smelt::exported {

// The tensors of the state by name, in the order of the file.
using State = std::vector<std::pair<std::string, at::Tensor>>;

class ProgramFile {
  public:
    // Throws std::system_error if the file cannot be read, FormatError if it is none or damaged.
    explicit ProgramFile(const std::string& path);

    // The sections, as they are stored.
    const std::map<std::string, std::string_view>& sections() const { return sections_; }
    // Throws FormatError if it is missing.
    std::string_view section(const std::string& name) const;

    // Views of the mapped weights; writes to them do not change the file. `other`: the file of weights beside the program's,
    // for a program that was saved with one. Throws as the constructor.
    State state(const std::optional<std::string>& other = {}) const;

  private:
    std::shared_ptr<MappedFile> mapping_;
    std::map<std::string, std::string_view> sections_;
};

// A section of a graph, of plans or of machine code. Throws FormatError if it is damaged.
std::string unpacked(std::string_view section);

}  // namespace smelt::exported
