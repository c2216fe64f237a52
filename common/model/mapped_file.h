// A file's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"

namespace smartgen::model {

// Thread-safe. A file that somebody shortens while it is mapped kills the process on access, as
// with every mapping: replace model files by renaming, never in place.
class MappedFile {
 public:
  // Errors: NotFound, InvalidArgument (not a regular file, empty), Unavailable (the system
  // refuses).
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// A whole small text file. NotFound where there is none; InvalidArgument above `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes);

}  // namespace smartgen::model
