// cuda_device_check [--measure | GoogleTest's flags]
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "tests/cuda_device/device_memory.h"
#include "tests/cuda_device/measure.h"

int main(int argc, char** argv) {
  namespace cuda = smartgen::executor::cuda;
  if (argc == 2 && std::string_view(argv[1]) == "--measure") return cuda::Measure();
  testing::InitGoogleTest(&argc, argv);
  // Of test data; the largest shapes take a few MiB.
  constexpr size_t kHeap = size_t{512} << 20;
  if (const std::string wrong = cuda::ShareHeap(kHeap); !wrong.empty()) {
    std::fprintf(stderr, "cuda_device_check: %s\n", wrong.c_str());
    return 2;
  }
  int result = 1;
  cuda::RunOnSharedStack([&] { result = RUN_ALL_TESTS(); });
  return result;
}
