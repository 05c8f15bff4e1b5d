// The plugin: the only file that is compiled and linked with MPI.
//
// Collectives are started and then tested with sleeps in between: ranks may wait for hours while
// another copies, and waiting must not take its core. MPI is called by one thread at a time
// (MPI_THREAD_SERIALIZED, a mutex), so that any MPI will do.
#define OMPI_SKIP_MPICXX 1  // the old C++ bindings
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "lib/mpi/plugin.h"

namespace tessera {
namespace {

std::mutex& mpi_mutex() {
  static std::mutex mutex;
  return mutex;
}

struct Communicator {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
};

int report(int code, char* why) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::snprintf(why, kMpiWhyBytes, "MPI: %.*s", length, text);
  return 1;
}

/// `start` begins a collective and gives its request.
template <class Start>
int complete(Start&& start, char* why) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mpi_mutex());
    if (const int code = start(&request); code != MPI_SUCCESS) return report(code, why);
  }
  auto pause = std::chrono::microseconds(0);
  for (;;) {
    int done = 0;
    {
      const std::lock_guard lock(mpi_mutex());
      if (const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE); code != MPI_SUCCESS)
        return report(code, why);
    }
    if (done != 0) return 0;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + std::chrono::microseconds(20), std::chrono::microseconds(2000));
  }
}

int start(int* rank, int* size, void** world, char* why) {
  const std::lock_guard lock(mpi_mutex());
  int started = 0;
  int code = MPI_Initialized(&started);
  if (code == MPI_SUCCESS && started == 0) {
    int provided = 0;
    code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    if (code == MPI_SUCCESS && provided < MPI_THREAD_SERIALIZED) {
      std::snprintf(why, kMpiWhyBytes, "this MPI does not support programs with threads");
      return 1;
    }
  }
  if (code != MPI_SUCCESS) return report(code, why);
  auto made = new (std::nothrow) Communicator;
  if (made == nullptr) return report(MPI_ERR_NO_MEM, why);
  made->comm = MPI_COMM_WORLD;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(made->comm, &made->rank);
  MPI_Comm_size(made->comm, &made->size);
  *rank = made->rank;
  *size = made->size;
  *world = made;
  return 0;
}

int duplicate(void* from, void** to, char* why) {
  const Communicator& parent = *static_cast<const Communicator*>(from);
  auto made = new (std::nothrow) Communicator(parent);
  if (made == nullptr) return report(MPI_ERR_NO_MEM, why);
  const auto start_it = [&](MPI_Request* r) { return MPI_Comm_idup(parent.comm, &made->comm, r); };
  if (const int failed = complete(start_it, why); failed != 0) {
    delete made;
    return failed;
  }
  *to = made;
  return 0;
}

void release(void* comm) {
  // A communicator is freed collectively, and ranks may leave at different times: MPI_Finalize
  // frees it.
  delete static_cast<Communicator*>(comm);
}

int lengths(void* comm, std::uint64_t mine, std::uint64_t* all, char* why) {
  const Communicator& group = *static_cast<const Communicator*>(comm);
  return complete(
      [&](MPI_Request* r) {
        return MPI_Iallgather(&mine, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, group.comm, r);
      },
      why);
}

/// MPI counts in int: rounds that stay below that in all.
int bytes(void* comm, const std::byte* mine, const std::uint64_t* lengths, std::byte* all,
          int everywhere, char* why) {
  const Communicator& group = *static_cast<const Communicator*>(comm);
  const auto size = static_cast<std::size_t>(group.size);
  const bool receives = everywhere != 0 || group.rank == 0;
  const std::uint64_t round = std::max<std::uint64_t>(1, INT_MAX / size);
  const std::uint64_t longest = *std::max_element(lengths, lengths + size);
  std::vector<int> counts(size), places(size);
  std::vector<std::byte> buffer;
  for (std::uint64_t done = 0; done < longest; done += round) {
    int total = 0;
    for (std::size_t r = 0; r < size; ++r) {
      counts[r] = static_cast<int>(std::min(round, lengths[r] - std::min(done, lengths[r])));
      places[r] = total;
      total += counts[r];
    }
    if (receives) buffer.resize(static_cast<std::size_t>(total));
    const std::byte* from = mine + std::min(done, lengths[group.rank]);
    const int count = counts[static_cast<std::size_t>(group.rank)];
    const auto start_it = [&](MPI_Request* r) {
      return everywhere != 0 ? MPI_Iallgatherv(from, count, MPI_BYTE, buffer.data(), counts.data(),
                                               places.data(), MPI_BYTE, group.comm, r)
                             : MPI_Igatherv(from, count, MPI_BYTE, buffer.data(), counts.data(),
                                            places.data(), MPI_BYTE, 0, group.comm, r);
    };
    if (const int failed = complete(start_it, why); failed != 0) return failed;
    std::uint64_t at = 0;
    for (std::size_t r = 0; receives && r < size; ++r) {
      if (counts[r] > 0)
        std::memcpy(all + at + done, buffer.data() + places[r],
                    static_cast<std::size_t>(counts[r]));
      at += lengths[r];
    }
  }
  return 0;
}

void finish() {
  const std::lock_guard lock(mpi_mutex());
  int ended = 0;
  if (MPI_Finalized(&ended) == MPI_SUCCESS && ended == 0) MPI_Finalize();
}

void abort_all(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

}  // namespace
}  // namespace tessera

extern "C" const tessera::MpiPlugin* tessera_mpi_plugin() {
  static constexpr tessera::MpiPlugin kTable = {
      tessera::kMpiPluginVersion, tessera::start, tessera::duplicate, tessera::release,
      tessera::lengths,           tessera::bytes, tessera::finish,    tessera::abort_all};
  return &kTable;
}
