#pragma once
// Both, in the order in which both work: LibTorch's logging defines a CHECK that ends the process, and
// the one of the test library has to be the one that stays.
#include <torch/torch.h>

#undef CHECK

#include <catch2/catch.hpp>
