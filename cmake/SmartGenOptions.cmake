# Build options and compiler flags that hold for every target.
option(SMARTGEN_CUDA "Build the CUDA executor and the NCCL channel" OFF)
option(SMARTGEN_WERROR "Treat warnings as errors" ON)
option(SMARTGEN_FUZZ "Build only the libraries that parse outside input, and their fuzz targets" OFF)
set(SMARTGEN_SANITIZE "" CACHE STRING "Value of -fsanitize=, empty for none")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
if(SMARTGEN_CUDA)
  message(FATAL_ERROR
    "SMARTGEN_CUDA=ON: this version has no CUDA executor yet; configure with -DSMARTGEN_CUDA=OFF "
    "(the release preset) to build everything that runs on the CPU.")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
# -O2 builds in half the time of -O3; the executor's kernels ask for -O3 themselves. Frame pointers
# are kept so that perf works on what users run.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -fno-omit-frame-pointer")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

add_compile_options(-Wall -Wextra -Wno-missing-field-initializers)
if(SMARTGEN_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_compile_options(-Wthread-safety)
endif()
if(SMARTGEN_SANITIZE)
  # -O1: instrumented code compiles twice as fast as with -O2.
  add_compile_options(-O1 -fsanitize=${SMARTGEN_SANITIZE} -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${SMARTGEN_SANITIZE})
endif()
if(SMARTGEN_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=address,undefined)
endif()

find_program(SMARTGEN_CCACHE ccache)
if(SMARTGEN_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${SMARTGEN_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SMARTGEN_CCACHE}")
endif()
find_program(SMARTGEN_MOLD mold)
if(SMARTGEN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
