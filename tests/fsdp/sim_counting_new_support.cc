// As in fsdp_runtime_tests: operator new is counted.
#include "tests/fsdp/runtime_counting_new_support.cc"
