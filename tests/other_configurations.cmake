# The sanitizer builds and the fuzz targets (presets asan, with Clang, and tsan) run as tests of the Release build, so that one ctest closes on all.
if(TESSERA_SANITIZE)
  return()
endif()
set(run_if_built ${CMAKE_CURRENT_SOURCE_DIR}/support/run_if_built.sh)

# They take long: what begins last would end alone.
function(add_other_configuration_test name program timeout)
  add_test(NAME "${name}" COMMAND ${run_if_built} ${program} ${ARGN})
  set_tests_properties("${name}" PROPERTIES TIMEOUT ${timeout} COST 100 SKIP_RETURN_CODE 77 ENVIRONMENT
    "ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1:malloc_context_size=12:quarantine_size_mb=64;UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=halt_on_error=1")
endfunction()

# Left to the Release run, and to ./dev soak: [wide] repeats over many sizes what a smaller case of the same code shows, [text]
# reads the sources, [kills] fork at every step of many saves, which costs most under a sanitizer; and where [one_thread] is all there
# is, no race can be. "~[.]": what is hidden is not asked for, and would run where others are left out.
foreach(layer base tensor layout state storage encoding format reshard ops live)
  add_other_configuration_test("asan, ubsan: ${layer}" ${PROJECT_BINARY_DIR}/asan/bin/${layer}_tests 2400 "~[wide]~[text]~[kills]~[.]")
endforeach()
foreach(layer storage reshard)
  add_other_configuration_test("tsan: ${layer}" ${PROJECT_BINARY_DIR}/tsan/bin/${layer}_tests 900 "~[wide]~[one_thread]~[.]")
endforeach()

# One seed and a number of runs, so that the gate says the same of the same code; ./dev soak explores. The time is a limit for
# targets that are slow. libFuzzer's own exit code for a finding is 77, which would read as skipped.
set(TESSERA_FUZZ_RUNS 20000 CACHE STRING "Inputs per target in the fuzz smoke test")
set(TESSERA_FUZZ_SECONDS 8 CACHE STRING "Most seconds per target in the fuzz smoke test")
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/*_fuzz.cc)
foreach(source ${fuzz_sources})
  get_filename_component(target ${source} NAME_WE)
  set(found ${PROJECT_BINARY_DIR}/asan/found/${target})
  file(MAKE_DIRECTORY ${found})
  add_other_configuration_test("fuzz smoke: ${target}" ${PROJECT_BINARY_DIR}/asan/bin/${target} 180
    -seed=1 -runs=${TESSERA_FUZZ_RUNS} -max_total_time=${TESSERA_FUZZ_SECONDS} -timeout=5 -error_exitcode=1 -rss_limit_mb=1024 -max_len=1048576 -print_final_stats=1
    ${found} ${PROJECT_SOURCE_DIR}/fuzz/corpus/${target})
  set_property(TEST "fuzz smoke: ${target}" APPEND PROPERTY ENVIRONMENT LLVM_PROFILE_FILE=${found}.profraw)
endforeach()
# The stored corpora, replayed: what they reach of the parsers, which must be most of it.
add_test(NAME "fuzz corpora: lines of the parsers" COMMAND ${PROJECT_SOURCE_DIR}/fuzz/coverage ${PROJECT_BINARY_DIR}/asan)
set_tests_properties("fuzz corpora: lines of the parsers" PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77
  ENVIRONMENT "ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1;UBSAN_OPTIONS=print_stacktrace=1")
