# The CUDA runtime, cuBLASLt and NCCL for host code: imported targets smartgen_cudart, smartgen_cublaslt and
# smartgen_nccl. Found by hand: NVIDIA's Python wheels (tools/install_deps.sh --cuda) lack parts that CMake's modules insist on.
if(NOT SMARTGEN_CUDA)
  return()
endif()
set(cuda_hints "$ENV{CUDA_HOME}" "${PROJECT_SOURCE_DIR}/build/cuda-toolkit" /usr/local/cuda)
set(cuda_advice "set CUDA_HOME (CUDA 13) and NCCL_HOME, or run tools/install_deps.sh --cuda")

find_path(SMARTGEN_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${cuda_hints} PATH_SUFFIXES include)
find_library(SMARTGEN_CUDART_LIBRARY cudart HINTS ${cuda_hints} PATH_SUFFIXES lib64 lib)
if(NOT SMARTGEN_CUDA_INCLUDE_DIR OR NOT SMARTGEN_CUDART_LIBRARY)
  message(FATAL_ERROR "SMARTGEN_CUDA=ON: no cuda_runtime_api.h or libcudart: ${cuda_advice}.")
endif()
add_library(smartgen_cudart SHARED IMPORTED)
set_target_properties(smartgen_cudart PROPERTIES IMPORTED_LOCATION "${SMARTGEN_CUDART_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${SMARTGEN_CUDA_INCLUDE_DIR}")

find_path(SMARTGEN_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${cuda_hints} PATH_SUFFIXES include)
find_library(SMARTGEN_CUBLASLT_LIBRARY cublasLt HINTS ${cuda_hints} PATH_SUFFIXES lib64 lib)
if(NOT SMARTGEN_CUBLASLT_INCLUDE_DIR OR NOT SMARTGEN_CUBLASLT_LIBRARY)
  message(FATAL_ERROR "SMARTGEN_CUDA=ON: no cublasLt.h or libcublasLt: ${cuda_advice}.")
endif()
add_library(smartgen_cublaslt SHARED IMPORTED)
# Half a gigabyte, so only programs that multiply with it load it.
set_target_properties(smartgen_cublaslt PROPERTIES IMPORTED_LOCATION "${SMARTGEN_CUBLASLT_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${SMARTGEN_CUBLASLT_INCLUDE_DIR};${SMARTGEN_CUDA_INCLUDE_DIR}"
  INTERFACE_LINK_OPTIONS "LINKER:--as-needed")

find_path(SMARTGEN_NCCL_INCLUDE_DIR nccl.h HINTS "$ENV{NCCL_HOME}" ${cuda_hints} PATH_SUFFIXES include)
find_library(SMARTGEN_NCCL_LIBRARY nccl HINTS "$ENV{NCCL_HOME}" ${cuda_hints} PATH_SUFFIXES lib64 lib)
if(NOT SMARTGEN_NCCL_INCLUDE_DIR OR NOT SMARTGEN_NCCL_LIBRARY)
  message(FATAL_ERROR "SMARTGEN_CUDA=ON: no nccl.h or libnccl: ${cuda_advice}.")
endif()
foreach(part MAJOR MINOR PATCH)
  file(STRINGS "${SMARTGEN_NCCL_INCLUDE_DIR}/nccl.h" line REGEX "#define NCCL_${part} +[0-9]+")
  string(REGEX MATCH "[0-9]+" nccl_${part} "${line}")
endforeach()
set(nccl_version "${nccl_MAJOR}.${nccl_MINOR}.${nccl_PATCH}")
if(nccl_version VERSION_LESS 2.28)
  message(FATAL_ERROR "${SMARTGEN_NCCL_INCLUDE_DIR}/nccl.h: want NCCL 2.28 or later, got ${nccl_version}: ${cuda_advice}.")
endif()
add_library(smartgen_nccl SHARED IMPORTED)
set_target_properties(smartgen_nccl PROPERTIES IMPORTED_LOCATION "${SMARTGEN_NCCL_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${SMARTGEN_NCCL_INCLUDE_DIR}")
message(STATUS "CUDA runtime: ${SMARTGEN_CUDART_LIBRARY}; cuBLASLt: ${SMARTGEN_CUBLASLT_LIBRARY}; NCCL ${nccl_version}: ${SMARTGEN_NCCL_LIBRARY}")
