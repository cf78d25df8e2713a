#include "exported/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace smelt::exported {

MappedFile::MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::system_error(errno, std::generic_category(), path);
    struct stat status{};
    int error = ::fstat(file, &status) != 0 ? errno : 0;
    size_ = error ? 0 : static_cast<size_t>(status.st_size);
    if (!error && size_ > 0) {
        data_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        if (data_ == MAP_FAILED) error = errno;
    }
    ::close(file);
    if (error) throw std::system_error(error, std::generic_category(), path);
}

MappedFile::~MappedFile() {
    if (size_ > 0) ::munmap(data_, size_);
}

c10::Storage storage_of(std::shared_ptr<MappedFile> file, std::string_view part) {
    auto* memory = const_cast<char*>(part.data());
    c10::DataPtr owned(
        memory, new std::shared_ptr<MappedFile>(std::move(file)),
        [](void* kept) { delete static_cast<std::shared_ptr<MappedFile>*>(kept); }, c10::Device(c10::kCPU));
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), part.size(),
                                                 std::move(owned), nullptr, false);
}

}  // namespace smelt::exported
