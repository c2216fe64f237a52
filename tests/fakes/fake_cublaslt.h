// cuBLASLt and the few calls of CUDA's runtime beside it, on the host's memory: links in place of
// both. Strict about what their documentation says: the types that a product may have, alignments
// that were promised, an algorithm that was chosen for another product.
#pragma once

#include <string>
#include <vector>

namespace smartgen::fakes {

struct CublasLtCalls {
  int handles = 0;  // open
  int choices = 0;  // of algorithms
  int products = 0;
  std::vector<std::string> faults;  // what a strict library would not have taken
  // The next call of this name fails with CUBLAS_STATUS_NOT_SUPPORTED.
  std::string fail;
};
// Of this process, until the next Reset. Not thread-safe.
CublasLtCalls& CublasLt();
void ResetCublasLt();

}  // namespace smartgen::fakes
