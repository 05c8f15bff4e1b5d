// Planning at scale: reads the metadata of a torch-dcp checkpoint (whose data files may be holes),
// plans files and copies for another world size, and prints what each step took. usage: plan_scale
// SRC WORLD_SIZE
#include <fmt/format.h>
#include <sys/resource.h>
#include <tessera/base/error.h>
#include <tessera/format/torch_dcp.h>
#include <tessera/reshard/plan.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lib/format/torch_dcp/metadata_writer.h"

namespace {

using namespace tessera;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// "VmRSS" or "VmHWM", in bytes.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":"))
      return std::strtod(line.c_str() + field.size() + 1, nullptr) * 1024;
  return 0;
}

class Steps {
 public:
  void step(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    fmt::print("{} wall {:.3f} cpu {:.3f} rss_mib {:.0f} peak_mib {:.0f}\n", name,
               std::chrono::duration<double>(now - last_).count(), cpu - cpu_,
               memory("VmRSS") / kMiB, memory("VmHWM") / kMiB);
    last_ = now;
    cpu_ = cpu;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  double cpu_ = cpu_seconds();
};

int run(const std::string& source, std::int64_t world_size) {
  const auto fs = make_posix_file_system();
  const auto directory = fs->open_directory(source);
  const FormatDriver& driver = torch_dcp_driver();
  Steps steps;
  const Manifest manifest = driver.manifest({directory.get(), "", source}, {});
  steps.step("read");
  TargetRequest request;
  request.world_size = world_size;
  const OutputPlan output = driver.output_plan(manifest, request);
  steps.step("files");
  const Plan plan(manifest, output);
  steps.step("copies");
  std::uint64_t sources = 0;
  for (std::size_t i = 0; i < plan.tensor_count(); ++i) sources += plan.sources(i).size();
  const double chunks = static_cast<double>(manifest.chunks.size());
  fmt::print("chunks {} segments {} sources {} manifest_bytes_per_chunk {:.1f}\n",
             manifest.chunks.size(), output.segments.size(), sources,
             static_cast<double>(manifest.chunks.memory_bytes()) / chunks);
  return 0;
}

constexpr std::int64_t kRowsPerRank = 4, kColumns = 256;
constexpr std::uint64_t kItemBytes = kRowsPerRank * kColumns * 4 + 1024;

int make(const std::filesystem::path& folder, std::size_t tensors, std::size_t ranks) {
  std::filesystem::create_directories(folder);
  std::vector<StateEntry> entries;
  const Shape whole{static_cast<std::int64_t>(ranks) * kRowsPerRank, kColumns};
  for (std::size_t t = 0; t < tensors; ++t) {
    const std::string name = fmt::format("model.layers.{}.block{}.weight", t / 12, t % 12);
    entries.push_back({name, {key_item(name)}, Value::tensor(static_cast<std::uint32_t>(t))});
  }
  const TensorSpec spec{DType::kFloat32, whole};
  const dcp::WrittenEntries written{tensors, [&](std::size_t e) {
                                      return dcp::WrittenEntry{entries[e], &spec};
                                    }};
  std::vector<Box> boxes;
  for (std::size_t r = 0; r < ranks; ++r)
    boxes.push_back(
        {{static_cast<std::int64_t>(r) * kRowsPerRank, 0}, Shape{kRowsPerRank, kColumns}});
  const dcp::WrittenItems items{
      tensors * ranks, [&](std::size_t i) { return static_cast<std::uint32_t>(i % tensors); },
      [&](std::size_t i) {
        const std::size_t rank = i / tensors, tensor = i % tensors;
        return dcp::WrittenItem{static_cast<std::uint32_t>(tensor), static_cast<std::int64_t>(rank),
                                tensor * kItemBytes, kItemBytes,
                                ChunkView(boxes[rank].origin, boxes[rank].shape.extents())};
      }};
  const Bytes metadata = dcp::render_metadata(written, items);
  std::ofstream(folder / ".metadata", std::ios::binary)
      .write(reinterpret_cast<const char*>(metadata.data()),
             static_cast<std::streamsize>(metadata.size()));
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto path = folder / fmt::format("__{}_0.distcp", r);
    std::ofstream(path).flush();
    std::filesystem::resize_file(path, tensors * kItemBytes);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool makes = argc == 5 && std::string(argv[1]) == "make";
  if (argc != 3 && !makes) {
    fmt::print(stderr, "usage: plan_scale SRC RANKS | plan_scale make DIR TENSORS RANKS\n");
    return 2;
  }
  try {
    if (makes)
      return make(argv[2], std::strtoull(argv[3], nullptr, 10),
                  std::strtoull(argv[4], nullptr, 10));
    return run(argv[1], std::atoll(argv[2]));
  } catch (const tessera::Error& error) {
    fmt::print(stderr, "{}\n", error.status().to_string());
    return 1;
  }
}
