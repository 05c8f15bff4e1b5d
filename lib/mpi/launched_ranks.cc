#include <dlfcn.h>
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/launched_ranks.h>
#include <tessera/base/text.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/program_folder.h"
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

/// What TESSERA_MPI names; else beside the program (a build), or where the installation puts it; ""
/// where there is none.
std::string plugin_path() {
  if (const char* named = std::getenv("TESSERA_MPI")) {
    if (::access(named, R_OK) == 0) return named;
    fail(Code::kUnsupported,
         fmt::format("TESSERA_MPI names \"{}\", which cannot be read: {}", printable(named),
                     std::strerror(errno)),
         "name the file tessera-mpi.so that ./dev build --mpi makes");
  }
  for (const std::string& folder : {program_folder(), std::string(TESSERA_PLUGIN_DIR)}) {
    if (folder.empty()) continue;
    const std::string path = folder + "/" + kPluginFile;
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return {};
}

/// Several processes that do not know of each other would race for one result.
[[noreturn]] void refuse_tasks(int tasks, std::string_view why, std::string_view cure) {
  const std::string count = tasks > 0 ? fmt::format("{}", tasks) : "several";
  fail(Code::kUnsupported,
       fmt::format("started as {} tasks, and {}: the tasks would race for one result", count, why),
       fmt::format("start it once, without mpirun or srun (one process in a step of Slurm: srun -n "
                   "1), or {}",
                   cure));
}

const MpiPlugin& load_plugin(int tasks) {
#ifdef TESSERA_STATIC
  refuse_tasks(tasks, "this is a static program, which cannot load MPI",
               "build the commands on this machine against its MPI (./dev build --mpi)");
#endif
  const std::string path = plugin_path();
  if (path.empty())
    refuse_tasks(tasks, "this build has no MPI (no tessera-mpi.so)",
                 "build that against the MPI that started them (./dev build --mpi), and name it in "
                 "TESSERA_MPI where it lies elsewhere");
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
