# Build options and compiler flags that hold for every target.
option(SMARTGEN_CUDA "Build the NCCL channel and SmartGen's own CUDA kernels (no executor uses these yet)" OFF)
set(SMARTGEN_CUDA_ARCHITECTURES "90" CACHE STRING "Compute capabilities to compile for, 80;86;89;90 for instance")
option(SMARTGEN_WERROR "Treat warnings as errors" ON)
option(SMARTGEN_FUZZ "Build only the libraries that parse outside input, and their fuzz targets" OFF)
set(SMARTGEN_SANITIZE "" CACHE STRING "Value of -fsanitize=, empty for none")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
if(SMARTGEN_CUDA)
  message(STATUS "SMARTGEN_CUDA=ON: channel: nccl, and kernels for sm_${SMARTGEN_CUDA_ARCHITECTURES}; "
    "there is no CUDA executor yet, so the daemons compute on the CPU all the same.")
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
# A fast linker, where there is one. Not mold 1: it lays out a program whose only thread-local data is
# zeros so that, for one layout in a few hundred, the loader refuses it ("cannot apply additional memory
# protection after relocation"): the empty segment begins inside the page before the one it protects.
find_program(SMARTGEN_MOLD mold)
find_program(SMARTGEN_GOLD ld.gold)
if(SMARTGEN_MOLD)
  execute_process(COMMAND "${SMARTGEN_MOLD}" --version OUTPUT_VARIABLE mold_version ERROR_QUIET)
endif()
if(SMARTGEN_MOLD AND mold_version MATCHES "mold ([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 2)
  add_link_options(-fuse-ld=mold)
elseif(SMARTGEN_GOLD)
  add_link_options(-fuse-ld=gold)
endif()
