// A file mapped into memory.
#pragma once
#include <c10/core/Storage.h>

#include <memory>
#include <string>
#include <string_view>

namespace smelt::exported {

// Pages are copied when they are written; the file does not change.
class MappedFile {
  public:
    explicit MappedFile(const std::string& path);  // throws std::system_error if it cannot be read
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::string_view data() const { return {static_cast<const char*>(data_), size_}; }

  private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

// A part of the file as the memory of tensors, which keeps the file mapped.
c10::Storage storage_of(std::shared_ptr<MappedFile> file, std::string_view part);

}  // namespace smelt::exported
