#include <dlfcn.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/launched_ranks.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>

#include "lib/mpi/plugin.h"

#ifndef TESSERA_PLUGIN_DIR
#define TESSERA_PLUGIN_DIR ""
#endif

namespace tessera {

namespace {

constexpr const char* kPluginFile = "tessera-mpi.so";

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  int number = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stop != end || number < 0) return std::nullopt;
  return number;
}

std::string folder_of_program() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return {};
  path.resize(static_cast<std::size_t>(length));
  return path.substr(0, path.rfind('/'));
}

/// Beside the program (a build), or where the installation puts it; "" where there is none.
std::string plugin_path() {
  const std::string own = folder_of_program();
  for (const std::string& folder : {own, std::string(TESSERA_PLUGIN_DIR)}) {
    if (folder.empty()) continue;
    const std::string path = folder + "/" + kPluginFile;
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return {};
}

const MpiPlugin& load_plugin(int tasks) {
  const std::string path = plugin_path();
  if (path.empty()) {
    fail(Code::kUnsupported,
         fmt::format("started as {} tasks, and this build has no MPI: the tasks would race for one "
                     "result",
                     tasks > 0 ? fmt::format("{}", tasks) : "several"),
         "start it once, without mpirun or srun, or build it where MPI is installed "
         "(libopenmpi-dev); one process in a step of Slurm: srun -n 1");
  }
  // Never closed: MPI leaves threads and exit handlers behind. Its own plugins need its symbols.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    fail(Code::kUnsupported,
         fmt::format("MPI cannot be loaded: {}", why != nullptr ? why : path.c_str()));
  }
  using Entry = const MpiPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, kMpiPluginSymbol));
  const MpiPlugin* plugin = entry != nullptr ? entry() : nullptr;
  if (plugin == nullptr || plugin->version != kMpiPluginVersion)
    fail(Code::kUnsupported, fmt::format("{} belongs to another version of this program", path));
  return *plugin;
}

/// srun without --mpi gives tasks nothing to find each other by. Open MPI then ends the process
/// inside of MPI_Init, with a page of text and no exit code of ours.
void require_meeting_point(int tasks) {
  for (const char* variable :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    if (std::getenv(variable) != nullptr) return;
  fail(Code::kUnsupported,
       fmt::format("srun started {} tasks without MPI: they would race for one result", tasks),
       "srun --mpi=pmix starts tasks that see each other; srun -n 1 starts one");
}

class MpiRanks final : public RankGroup {
 public:
  MpiRanks(const MpiPlugin& plugin, void* comm, int rank, int size, bool is_world)
      : plugin_(plugin), comm_(comm), rank_(rank), size_(size), is_world_(is_world) {}
  ~MpiRanks() override {
    kept().reset();  // waits for a save in the background, which needs MPI
    plugin_.release(comm_);
    if (is_world_) plugin_.finish();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override {
    return exchange(bytes, true);
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) override {
    return exchange(bytes, false);
  }

  std::unique_ptr<RankGroup> duplicate() override {
    void* made = nullptr;
    char why[kMpiWhyBytes] = "";
    check(plugin_.duplicate(comm_, &made, why), why);
    return std::make_unique<MpiRanks>(plugin_, made, rank_, size_, false);
  }

  void abort(int exit_code) const { plugin_.abort(exit_code); }

 private:
  void check(int failed, const char* why) const {
    if (failed == 0) return;
    Status status{Code::kIo, why, {}, {}};
    status.context.rank = rank_;
    throw Error(std::move(status));
  }

  std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> bytes, bool everywhere) {
    char why[kMpiWhyBytes] = "";
    std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size_));
    check(plugin_.lengths(comm_, bytes.size(), lengths.data(), why), why);
    const bool receives = everywhere || rank_ == 0;
    std::vector<std::byte> joined;
    if (receives) joined.resize(std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}));
    check(
        plugin_.bytes(comm_, bytes.data(), lengths.data(), joined.data(), everywhere ? 1 : 0, why),
        why);
    std::vector<std::vector<std::byte>> all;
    if (!receives) return all;
    auto at = joined.cbegin();
    for (const std::uint64_t length : lengths) {
      const auto end = at + static_cast<std::ptrdiff_t>(length);
      all.emplace_back(at, end);
      at = end;
    }
    return all;
  }

  const MpiPlugin& plugin_;
  void* comm_;
  int rank_;
  int size_;
  bool is_world_;
};

}  // namespace

int launched_tasks() {
  int tasks = 1;
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    tasks = std::max(tasks, number_in(variable).value_or(1));
  // srun sets how many tasks its step has. SLURM_NTASKS alone is what a job may start: a batch
  // script and a shell in an allocation see it too, and run what they run once.
  const auto slurm = number_in("SLURM_STEP_NUM_TASKS");
  tasks = std::max(tasks, slurm.value_or(1));
  const bool size_unknown = tasks == 1 && std::getenv("PMIX_RANK") != nullptr && !slurm &&
                            !number_in("PMI_SIZE") && !number_in("OMPI_COMM_WORLD_SIZE");
  return size_unknown ? 0 : tasks;
}

int launched_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const auto rank = number_in(variable)) return *rank;
  return 0;
}

std::unique_ptr<RankGroup> launched_ranks() {
  const int tasks = launched_tasks();
  if (tasks == 1) return nullptr;
  const MpiPlugin& plugin = load_plugin(tasks);
  require_meeting_point(tasks);
  int rank = 0, size = 1;
  void* world = nullptr;
  char why[kMpiWhyBytes] = "";
  if (plugin.start(&rank, &size, &world, why) != 0) fail(Code::kIo, why);
  auto ranks = std::make_unique<MpiRanks>(plugin, world, rank, size, true);
  if (tasks > 1 && size != tasks) {
    fail(Code::kUnsupported,
         fmt::format("the launcher says {} tasks, MPI sees {}: the tasks would race for one result",
                     tasks, size),
         "srun --mpi=pmix starts tasks that see each other; srun -n 1 starts one");
  }
  return ranks;
}

void abort_launched(const RankGroup& ranks, int exit_code) {
  if (const auto* launched = dynamic_cast<const MpiRanks*>(&ranks)) launched->abort(exit_code);
}

}  // namespace tessera
