# The runtime as a library, for the LibTorch that its caller links: the build's own (fsdp_core/), or that of a machine with a
# GPU (tests/gpu_kit/).

# tessera_fsdp_library(NAME) : everything but what names NCCL.
function(tessera_fsdp_library target)
  set(folder ${PROJECT_SOURCE_DIR}/fsdp_core)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "(_cuda|_main)\\.cc$")
  add_library(${target} STATIC ${sources})
  tessera_unity_build(${target} ${sources})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR})
  # ProcessGroupGloo.hpp names types of gloo's that LibTorch exports but ships no header for.
  target_include_directories(${target} SYSTEM PRIVATE ${folder}/third_party_stubs/gloo)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Werror=return-type)
  # LibTorch's include folder has an {fmt} of its own, found first and without a library to link.
  # The C++ library before LibTorch, which the caller links: libtorch.so of the wheels with CUDA exports functions of
  # std::filesystem of its own, and the first library that a program names is the one whose functions it calls (remove_all
  # of libtorch 2.11 calls a null pointer).
  target_link_libraries(${target}
    PUBLIC tessera::ckpt $<$<CXX_COMPILER_ID:GNU>:-Wl,--push-state,--no-as-needed,-lstdc++,--pop-state>
    PRIVATE fmt::fmt-header-only)
  target_precompile_headers(${target} PRIVATE
    <ATen/ATen.h> <torch/nn/module.h> <torch/csrc/autograd/engine.h> <torch/csrc/autograd/function_hook.h>
    <torch/csrc/autograd/graph_task.h> <torch/csrc/autograd/variable.h>
    <torch/csrc/distributed/c10d/Backend.hpp> <fmt/format.h>
    <algorithm> <cstdint> <functional> <map> <memory> <optional> <span> <string> <vector>)
endfunction()

# tessera_fsdp_nccl(NAME NCCL_INCLUDES CUDA_INCLUDES...) : the file that names NCCL.
function(tessera_fsdp_nccl target)
  set(folder ${PROJECT_SOURCE_DIR}/fsdp_core)
  add_library(${target} OBJECT ${folder}/comm/nccl_comm_cuda.cc)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  # Stubs stand in for what a toolkit without math libraries, or a LibTorch without CUDA, does not have.
  target_include_directories(${target} SYSTEM AFTER PRIVATE ${ARGN} ${folder}/third_party_stubs/cuda)
  target_compile_definitions(${target} PRIVATE USE_C10D_NCCL)
  target_link_libraries(${target} PRIVATE tessera::ckpt fmt::fmt-header-only)
endfunction()
