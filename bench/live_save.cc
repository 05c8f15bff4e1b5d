// Saving live state, measured beside its floors, in one process with a thread for each rank:
//
//   live_save DIR [RANKS [MIB [TENSORS]]]      JSON on stdout; DIR is made and removed
//
//   plan    the first save's planning, and that of later saves, which use the plan again
//   stall   how long save_async keeps its caller, beside memcpy of the same bytes between warm
//           buffers and beside a whole save(); and with a lazy snapshot. In seconds, and in CPU
//           time of the caller, which other programs on the machine do not lengthen
//   step    of a loop that works on a matrix, alone and while a save persists
//   save, load   beside a plain write and read of the same bytes in files of the same sizes
//
// Medians; rank 0's clock between two barriers. The ranks share this machine's processors, so that
// figures are those of the machine, ratios those of the code.
#include <fcntl.h>
#include <tessera/tessera.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 7;

struct Case {
  std::string folder;
  int ranks = 4;
  std::int64_t mib = 512;  // of all ranks together
  std::int64_t tensors = 200;
};

/// One rank's shards: equal rows of every tensor.
class Shards {
 public:
  Shards(const Case& run, int rank) : run_(run), rank_(rank) {
    const std::int64_t floats = run.mib * (1 << 20) / 4 / run.tensors / run.ranks;
    rows_ = std::max<std::int64_t>(1, floats / kColumns);
    memory_.assign(static_cast<std::size_t>(run.tensors * rows_ * kColumns),
                   static_cast<float>(rank));
  }
  tessera::LiveState state() {
    tessera::LiveState made;
    const tessera::TensorSpec spec{tessera::DType::kFloat32, {rows_ * run_.ranks, kColumns}};
    tessera::ValueDict dict;
    std::vector<tessera::LiveTensor> tensors;
    for (std::int64_t t = 0; t < run_.tensors; ++t) {
      tessera::LiveTensor tensor;
      tensor.spec = spec;
      tensor.pieces.push_back({tessera::Chunk::whole_of({{rank_ * rows_, 0}, {rows_, kColumns}}),
                               memory_.data() + t * rows_ * kColumns,
                               {}});
      dict.emplace_back(tessera::Value::string("layers." + std::to_string(t) + ".weight"),
                        tessera::Value::tensor(static_cast<std::uint32_t>(t)));
      tensors.push_back(std::move(tensor));
    }
    made = tessera::LiveState::of(
        tessera::Value::dict(
            {{tessera::Value::string("model"), tessera::Value::dict(std::move(dict))},
             {tessera::Value::string("step"), tessera::Value::integer(1000)}}),
        std::move(tensors));
    return made;
  }
  std::vector<float>& memory() { return memory_; }
  std::size_t bytes() const { return memory_.size() * sizeof(float); }

 private:
  static constexpr std::int64_t kColumns = 256;
  const Case& run_;
  int rank_;
  std::int64_t rows_ = 0;
  std::vector<float> memory_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// The threads of all ranks go on when the last one is awake: waking takes as long as planning, and
/// each rank's plan waits for the others.
void start_together(int ranks) {
  static std::atomic<int> came{0};
  const int all = (came.fetch_add(1) / ranks + 1) * ranks;
  while (came.load() < all) std::this_thread::yield();
}

/// Seconds from a barrier to the end of `work` on the slowest rank.
double timed(tessera::RankGroup& ranks, const std::function<void()>& work) {
  ranks.barrier();
  start_together(ranks.size());
  const Clock::time_point start = Clock::now();
  work();
  ranks.barrier();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

void write_floor(const std::string& path, const std::byte* data, std::size_t bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  check(fd >= 0, "cannot create the floor's file");
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t wrote = ::write(fd, data + at, std::min<std::size_t>(bytes - at, 8 << 20));
    check(wrote > 0, "cannot write the floor's file");
    at += static_cast<std::size_t>(wrote);
  }
  check(::fsync(fd) == 0, "cannot sync the floor's file");
  ::close(fd);
}

void read_floor(const std::string& path, std::byte* data, std::size_t bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "cannot open the floor's file");
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t got = ::read(fd, data + at, std::min<std::size_t>(bytes - at, 8 << 20));
    check(got > 0, "cannot read the floor's file");
    at += static_cast<std::size_t>(got);
  }
  ::close(fd);
}

double cpu_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// CPU seconds of this thread in `work`.
double cpu_of(const std::function<void()>& work) {
  const double start = cpu_of_this_thread();
  work();
  return cpu_of_this_thread() - start;
}

/// A training step's worth of arithmetic that stays in the caches.
double step_seconds() {
  static thread_local std::vector<float> a(256 * 256, 1.0f), b(256 * 256, 0.5f), c(256 * 256);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 256; ++i)
    for (int k = 0; k < 256; ++k)
      for (int j = 0; j < 256; ++j) c[i * 256 + j] += a[i * 256 + k] * b[k * 256 + j];
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Figures {
  std::vector<double> plan_again, stall, lazy, copy, stall_cpu, lazy_cpu, copy_cpu, save, load,
      load_in_place, write, read, step_ratio;
  double plan_first = 0;
  std::uint64_t plan_bytes_first = 0, plan_bytes_again = 0;
};

void measure(const Case& run, tessera::RankGroup& ranks, Figures& out) {
  const bool tells = ranks.rank() == 0;
  Shards shards(run, ranks.rank());
  std::vector<float> warm(shards.memory().size(), 1);
  const std::string floor = run.folder + "/floor_" + std::to_string(ranks.rank());
  auto* bytes = reinterpret_cast<std::byte*>(shards.memory().data());
  for (int round = 0; round <= kRounds; ++round) {  // the first warms up
    const std::string path = run.folder + "/step_" + std::to_string(round);
    tessera::SaveReport report;
    // Made before the clock runs: else one rank's planning is waiting for the other to make its
    // own.
    const tessera::LiveState fresh = shards.state();
    const double save = timed(ranks, [&] { report = tessera::save(path, fresh, ranks); });
    tessera::PendingSave pending;
    double copy_cpu = 0, stall_cpu = 0, lazy_cpu = 0;
    const double copy = timed(ranks, [&] {
      copy_cpu = cpu_of([&] { std::memcpy(warm.data(), shards.memory().data(), shards.bytes()); });
    });
    tessera::LiveState state = shards.state();
    state.changed = [] { return std::string(); };
    const double stall = timed(ranks, [&] {
      stall_cpu = cpu_of([&] { pending = tessera::save_async(path + "_async", state, ranks); });
    });
    std::vector<double> beside, alone;
    while (!pending.done() && beside.size() < 500) beside.push_back(step_seconds());
    pending.wait();
    for (std::size_t n = 0; n < 20; ++n) alone.push_back(step_seconds());
    tessera::SaveOptions lazily;
    lazily.snapshot = tessera::SnapshotTiming::kLazy;
    const double lazy = timed(ranks, [&] {
      lazy_cpu =
          cpu_of([&] { pending = tessera::save_async(path + "_lazy", state, ranks, lazily); });
    });
    pending.finish_snapshot();
    pending.wait();
    const double write = timed(ranks, [&] { write_floor(floor, bytes, shards.bytes()); });
    const double load = timed(ranks, [&] { tessera::load(path, shards.state(), ranks); });
    tessera::LoadPolicy in_place;
    in_place.safety = tessera::LoadSafety::kInPlace;
    const double direct =
        timed(ranks, [&] { tessera::load(path, shards.state(), ranks, in_place); });
    const double read = timed(ranks, [&] { read_floor(floor, bytes, shards.bytes()); });
    if (tells) {
      std::filesystem::remove_all(path);
      std::filesystem::remove_all(path + "_async");
      std::filesystem::remove_all(path + "_lazy");
    }
    if (!tells) continue;
    if (round == 0) {
      out.plan_first = report.plan_seconds;
      out.plan_bytes_first = report.plan_bytes;
      continue;
    }
    check(report.plan_reused, "a plan was not used again");
    out.plan_again.push_back(report.plan_seconds);
    out.plan_bytes_again += report.plan_bytes;
    out.save.push_back(save);
    out.copy.push_back(copy);
    out.stall.push_back(stall);
    out.lazy.push_back(lazy);
    out.copy_cpu.push_back(copy_cpu);
    out.stall_cpu.push_back(stall_cpu);
    out.lazy_cpu.push_back(lazy_cpu);
    // Of the same moment: a virtual processor may be half as fast the next.
    if (!beside.empty()) out.step_ratio.push_back(median(beside) / median(alone));
    out.write.push_back(write);
    out.load.push_back(load);
    out.load_in_place.push_back(direct);
    out.read.push_back(read);
  }
}

void print(const Case& run, const Figures& f) {
  std::printf(
      "{\"ranks\": %d, \"mib\": %lld, \"tensors\": %lld,\n"
      " \"plan_first_s\": %.5f, \"plan_again_s\": %.5f, \"plan_again_of_first\": %.4f,\n"
      " \"plan_bytes_first\": %llu, \"plan_bytes_again\": %llu,\n"
      " \"memcpy_s\": %.5f, \"stall_s\": %.5f, \"stall_of_memcpy\": %.3f,\n"
      " \"lazy_stall_s\": %.5f, \"lazy_of_stall\": %.4f, \"save_of_stall\": %.2f,\n"
      " \"memcpy_cpu_s\": %.5f, \"stall_cpu_s\": %.5f, \"lazy_cpu_s\": %.5f,\n"
      " \"stall_cpu_of_memcpy\": %.3f, \"step_while_saving\": %.3f,\n"
      " \"save_s\": %.4f, \"write_floor_s\": %.4f, \"save_of_floor\": %.3f,\n"
      " \"load_s\": %.4f, \"load_in_place_s\": %.4f, \"read_floor_s\": %.4f,\n"
      " \"load_of_floor\": %.3f, \"load_in_place_of_floor\": %.3f}\n",
      run.ranks, static_cast<long long>(run.mib), static_cast<long long>(run.tensors), f.plan_first,
      median(f.plan_again), median(f.plan_again) / f.plan_first,
      static_cast<unsigned long long>(f.plan_bytes_first),
      static_cast<unsigned long long>(f.plan_bytes_again), median(f.copy), median(f.stall),
      median(f.stall) / median(f.copy), median(f.lazy), median(f.lazy) / median(f.stall),
      median(f.save) / median(f.stall), median(f.copy_cpu), median(f.stall_cpu), median(f.lazy_cpu),
      median(f.stall_cpu) / median(f.copy_cpu), f.step_ratio.empty() ? 0 : median(f.step_ratio),
      median(f.save), median(f.write), median(f.save) / median(f.write), median(f.load),
      median(f.load_in_place), median(f.read), median(f.load) / median(f.read),
      median(f.load_in_place) / median(f.read));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fputs("usage: live_save DIR [RANKS [MIB [TENSORS]]]\n", stderr), 2;
  Case run;
  run.folder = argv[1];
  if (argc > 2) run.ranks = std::atoi(argv[2]);
  if (argc > 3) run.mib = std::atoll(argv[3]);
  if (argc > 4) run.tensors = std::atoll(argv[4]);
  std::filesystem::create_directories(run.folder);
  auto groups = tessera::thread_ranks(run.ranks);
  Figures figures;
  std::vector<std::thread> threads;
  std::string error;
  for (auto& group : groups)
    threads.emplace_back([&, ranks = std::move(group)]() mutable {
      try {
        measure(run, *ranks, figures);
      } catch (const std::exception& thrown) {
        if (ranks->rank() == 0) error = thrown.what();
      }
      ranks.reset();
    });
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove_all(run.folder);
  if (!error.empty()) return std::fprintf(stderr, "live_save: %s\n", error.c_str()), 1;
  print(run, figures);
}
