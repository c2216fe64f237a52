#include "common/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace smartgen::model {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return base::NotFound("{}: no such file", path);
    return base::Unavailable("{}: cannot open: {}", path, std::strerror(error));
  }
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) {
    return base::Unavailable("{}: cannot stat: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return base::InvalidArgument("{}: not a regular file", path);
  if (info.st_size == 0) return base::InvalidArgument("{}: the file is empty", path);
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    return base::Unavailable("{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
  }
  return std::unique_ptr<MappedFile>(
      new MappedFile({static_cast<const std::byte*>(address), size}));
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const auto bytes = file->bytes();
  if (bytes.size() > max_bytes) {
    return base::InvalidArgument("{}: want at most {} bytes, file has {}", path, max_bytes,
                                 bytes.size());
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace smartgen::model
