// A guard by name: #pragma once does not know the file again in a precompiled header that ccache kept.
#ifndef TESSERA_TESTS_FSDP_TORCH_AND_CATCH_H
#define TESSERA_TESTS_FSDP_TORCH_AND_CATCH_H
// Both, in the order in which both work: LibTorch's logging defines a CHECK that ends the process, and
// the one of the test library has to be the one that stays.
#include <torch/torch.h>

#undef CHECK

#include <catch2/catch.hpp>

#endif  // TESSERA_TESTS_FSDP_TORCH_AND_CATCH_H
