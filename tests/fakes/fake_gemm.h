// Gemm on plain host memory, at once: where the kernels run on the emulator.
#pragma once

#include <cstddef>
#include <vector>

#include "common/executor/cuda/gemm.h"
#include "common/selector/dtype.h"

namespace smartgen::fakes {

class FakeGemm final : public executor::cuda::Gemm {
 public:
  absl::Status Run(const executor::cuda::GemmArgs& args, executor::cuda::Stream) override {
    using executor::cuda::GemmArgs;
    RETURN_IF_ERROR(CheckGemm(args));
    ++runs_;
    std::vector<float> x(static_cast<size_t>(args.k));
    for (int64_t row = 0; row < args.m; ++row) {
      for (int64_t i = 0; i < args.k; ++i) {
        x[i] = Rounded(Load(args.x, args.x_element, row * args.ldx + i), args.w_element);
      }
      for (int64_t column = 0; column < args.n; ++column) {
        // In double, so that no test's tolerance has to make room for this order of summing.
        double sum = 0;
        for (int64_t i = 0; i < args.k; ++i) {
          sum += double{x[i]} * Load(args.w, args.w_element, column * args.ldw + i);
        }
        const int64_t at = row * args.ldy + column;
        if (args.then == GemmArgs::Then::kAdd) sum += Load(args.y, args.y_element, at);
        selector::StoreElement(static_cast<float>(sum), Type(args.y_element),
                               static_cast<std::byte*>(args.y) + at * ElementBytes(args.y_element));
      }
    }
    return absl::OkStatus();
  }
  int64_t runs() const { return runs_; }

 private:
  using Element = executor::cuda::Element;
  static kv::DType Type(Element element) { return static_cast<kv::DType>(element); }
  static float Load(const void* from, Element element, int64_t at) {
    return selector::LoadElement(
        static_cast<const std::byte*>(from) + at * executor::cuda::ElementBytes(element),
        Type(element));
  }
  static float Rounded(float value, Element element) {
    std::byte bytes[sizeof(float)];
    selector::StoreElement(value, Type(element), bytes);
    return selector::LoadElement(bytes, Type(element));
  }

  int64_t runs_ = 0;
};

}  // namespace smartgen::fakes
