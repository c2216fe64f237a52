// Which instruction sets the kernels are compiled for. Include before anything of Highway.
#pragma once

// SSE4, AVX2 and AVX-512 on x86; what lies between them gains nothing here and costs build time.
// SVE vectors have no size that the compiler knows, which the register tiles need; such machines
// run the NEON code.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
