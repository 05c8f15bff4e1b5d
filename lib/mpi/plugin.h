#pragma once
// What the MPI plugin offers: plain functions, so that it shares no C++ type with the program that
// loads it. Every call returns 0, or not 0 with a line in `why`. A communicator is used by one
// thread at a time; several of them at the same time.
#include <cstddef>
#include <cstdint>

namespace tessera {

inline constexpr int kMpiPluginVersion = 1;
inline constexpr std::size_t kMpiWhyBytes = 512;

struct MpiPlugin {
  int version;
  int (*start)(int* rank, int* size, void** world, char* why);
  int (*duplicate)(void* from, void** to, char* why);
  void (*release)(void* comm);
  /// Everybody's length, by rank.
  int (*lengths)(void* comm, std::uint64_t mine, std::uint64_t* all, char* why);
  /// Everybody's bytes, one after the other in `all`; at rank 0 alone unless `everywhere`.
  int (*bytes)(void* comm, const std::byte* mine, const std::uint64_t* lengths, std::byte* all,
               int everywhere, char* why);
  void (*finish)();
  void (*abort)(int exit_code);
};

/// The symbol that the plugin exports: a function that returns the table.
inline constexpr const char* kMpiPluginSymbol = "tessera_mpi_plugin";

}  // namespace tessera
