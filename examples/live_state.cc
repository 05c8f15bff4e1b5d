// Saves and loads the state of a job that has no framework: raw memory on any number of ranks, here
// threads of one process.
//
//   live_state save DIR RANKS     every rank holds some rows of a weight and its momentum
//   live_state load DIR RANKS     any other number of ranks; checks every element
#include <tessera/tessera.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t kRows = 10;
constexpr std::int64_t kColumns = 6;

/// What one rank holds: rows [first, first + count) of two arrays, and all of a third.
struct Job {
  Job(int rank, int ranks)
      : first(kRows * rank / ranks),
        count(kRows * (rank + 1) / ranks - first),
        weight(static_cast<std::size_t>(count * kColumns)),
        momentum(weight.size()),
        bias(kColumns) {}

  /// The live state: which memory holds which part of which tensor.
  tessera::LiveState state() {
    using tessera::key_item;
    const tessera::TensorSpec spec{tessera::DType::kFloat32, {kRows, kColumns}};
    const auto rows = tessera::Chunk::whole_of({{first, 0}, {count, kColumns}});
    tessera::LiveState made;
    made.add_piece({key_item("model"), key_item("layer.weight")}, spec, {rows, weight.data(), {}});
    made.add({key_item("model"), key_item("layer.bias")},
             {tessera::DType::kFloat32, {kColumns}, {}, bias.data()});
    made.add_piece({key_item("optim"), key_item("state"), key_item("layer.weight"),
                    key_item("momentum_buffer")},
                   spec, {rows, momentum.data(), {}});
    made.add_value("step", tessera::Value::integer(step));
    made.on_value = [this](const tessera::StateEntry& stored) {
      if (stored.name == "step") step = stored.value.as_int();
    };
    return made;
  }

  void fill() {
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] = static_cast<float>(first * kColumns) + static_cast<float>(i);
      momentum[i] = -weight[i];
    }
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = 0.5f * static_cast<float>(i);
    step = 100;
  }

  std::int64_t first, count;
  std::vector<float> weight, momentum, bias;
  std::int64_t step = 0;
};

void run(const std::string& verb, const std::string& path, tessera::RankGroup& ranks) {
  Job job(ranks.rank(), ranks.size());
  if (verb == "save") {
    job.fill();
    tessera::PendingSave pending = tessera::save_async(path, job.state(), ranks);
    // Training goes on here: the checkpoint holds the state as it was.
    const tessera::SaveReport report = pending.wait();
    if (ranks.rank() == 0)
      std::printf("saved %llu bytes from %d ranks\n",
                  static_cast<unsigned long long>(report.total_bytes), ranks.size());
    return;
  }
  const tessera::LoadResult result = tessera::load(path, job.state(), ranks);
  Job expected(ranks.rank(), ranks.size());
  expected.fill();
  const bool same = job.weight == expected.weight && job.momentum == expected.momentum &&
                    job.bias == expected.bias && job.step == expected.step;
  if (!same) tessera::fail(tessera::Code::kCorrupt, "other bytes than those saved");
  if (ranks.rank() == 0)
    std::printf("loaded %zu entries of %s into %d ranks\n", result.loaded.size(),
                result.format.c_str(), ranks.size());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc == 4 ? argv[1] : "";
  const int size = argc == 4 ? std::atoi(argv[3]) : 0;
  if ((verb != "save" && verb != "load") || size < 1)
    return std::fputs("usage: live_state save|load DIR RANKS\n", stderr), 2;
  auto groups = tessera::thread_ranks(size);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(groups.size());
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        run(verb, argv[2], *groups[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (errors[0].empty()) return 0;
  return std::fprintf(stderr, "live_state: %s\n", errors[0].c_str()), 1;
}
