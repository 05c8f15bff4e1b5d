# The libraries that the toolkit links, built from the pinned sources below TESSERA_BUNDLED (third_party/unpack.py): for
# machines without Debian's packages, and for programs that run on every Linux.
enable_language(C)

add_library(bundled_fmt INTERFACE)
target_include_directories(bundled_fmt SYSTEM INTERFACE ${TESSERA_BUNDLED}/fmt/include)
target_compile_definitions(bundled_fmt INTERFACE FMT_HEADER_ONLY)
add_library(fmt::fmt ALIAS bundled_fmt)
add_library(fmt::fmt-header-only ALIAS bundled_fmt)

add_library(bundled_json INTERFACE)
target_include_directories(bundled_json SYSTEM INTERFACE ${TESSERA_BUNDLED}/nlohmann_json/include)
add_library(nlohmann_json::nlohmann_json ALIAS bundled_json)

add_library(bundled_cli11 INTERFACE)
target_include_directories(bundled_cli11 SYSTEM INTERFACE ${TESSERA_BUNDLED}/CLI11/include)
add_library(CLI11::CLI11 ALIAS bundled_cli11)

# Zip and chunk codecs are read alone; the tests also compress.
add_library(bundled_zstd STATIC ${TESSERA_BUNDLED}/zstd/zstd.c)
target_include_directories(bundled_zstd SYSTEM PUBLIC ${TESSERA_BUNDLED}/zstd)
target_compile_options(bundled_zstd PRIVATE -w)

set(ZLIB_COMPAT ON CACHE BOOL "" FORCE)
set(WITH_GZFILEOP OFF CACHE BOOL "" FORCE)
set(BUILD_SHARED_LIBS OFF)
set(tessera_build_testing ${BUILD_TESTING})
set(BUILD_TESTING OFF CACHE BOOL "" FORCE)
add_subdirectory(${TESSERA_BUNDLED}/zlib-ng ${CMAKE_BINARY_DIR}/zlib-ng EXCLUDE_FROM_ALL SYSTEM)
set(BUILD_TESTING "${tessera_build_testing}" CACHE BOOL "" FORCE)

set(TESSERA_ZLIB zlib-ng)
set(TESSERA_CODECS zlib-ng bundled_zstd)
set(TESSERA_CHECKSUMS)

if(TESSERA_WITH_HDF5)
  include(ExternalProject)
  set(hdf5_prefix ${CMAKE_BINARY_DIR}/hdf5)
  ExternalProject_Add(bundled_hdf5_build
    PREFIX ${hdf5_prefix} SOURCE_DIR ${TESSERA_BUNDLED}/hdf5 INSTALL_DIR ${hdf5_prefix}
    CMAKE_ARGS -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -DCMAKE_INSTALL_PREFIX=${hdf5_prefix} -DCMAKE_BUILD_TYPE=Release
      -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}
      -DCMAKE_AR=${CMAKE_AR} -DCMAKE_RANLIB=${CMAKE_RANLIB} "-DCMAKE_C_FLAGS=-w -Wno-implicit-int" -DCMAKE_POLICY_VERSION_MINIMUM=3.5
      -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DHDF5_BUILD_TOOLS=OFF -DHDF5_BUILD_EXAMPLES=OFF -DHDF5_BUILD_HL_LIB=OFF
      -DHDF5_BUILD_CPP_LIB=OFF -DHDF5_BUILD_FORTRAN=OFF -DHDF5_BUILD_JAVA=OFF -DHDF5_ENABLE_Z_LIB_SUPPORT=OFF
      -DHDF5_ENABLE_SZIP_SUPPORT=OFF -DHDF5_ENABLE_DIRECT_VFD=OFF
    BUILD_BYPRODUCTS ${hdf5_prefix}/lib/libhdf5.a
    LOG_CONFIGURE ON LOG_BUILD ON LOG_INSTALL ON LOG_OUTPUT_ON_FAILURE ON)
  file(MAKE_DIRECTORY ${hdf5_prefix}/include)
  add_library(bundled_hdf5 STATIC IMPORTED)
  set_target_properties(bundled_hdf5 PROPERTIES IMPORTED_LOCATION ${hdf5_prefix}/lib/libhdf5.a
    INTERFACE_INCLUDE_DIRECTORIES ${hdf5_prefix}/include)
  add_dependencies(bundled_hdf5 bundled_hdf5_build)
  set(TESSERA_HDF5 bundled_hdf5)
endif()
