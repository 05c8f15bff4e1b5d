// Names in a checkpoint that want out of its folder, and links, pipes and devices in the place of
// its files, also ones that come while it is read: every descriptor that the C library handed out
// is looked at, and none leads outside, but for a regular file that a link in the folder itself
// stands for.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <tessera/base/error.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/verify.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/faults/system_calls.h"
#include "tests/support/dcp_builder.h"
#include "tests/support/run_command.h"
#include "tests/support/safetensors_file.h"

using namespace tessera;
using namespace tessera::faults;
using namespace tessera::testing;

namespace {

namespace stdfs = std::filesystem;

/// temp/ck holds a checkpoint, temp/outside what it may not reach: a file that would do for each of
/// its own, and a whole checkpoint.
struct Grounds {
  TemporaryFolder temp;
  std::string root = stdfs::canonical(temp.path()).string();
  std::string inside = root + "/ck";
  std::string outside = root + "/outside";

  Grounds() {
    stdfs::create_directory(inside);
    stdfs::create_directory(outside);
    write(outside + "/secret", tensor_item({2, 2}, 7));
    stdfs::copy(case_path("dcp/fsdp2_w2_model_only"), outside + "/run");
  }
  static void write(const std::string& path, ByteView bytes) {
    stdfs::create_directories(stdfs::path(path).parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void clear() const {
    for (const auto& entry : stdfs::directory_iterator(inside)) stdfs::remove_all(entry.path());
  }
  /// Links and others that names may lead through.
  void add_traps(bool links_to_files) const {
    if (links_to_files) {
      stdfs::create_symlink(outside + "/secret", inside + "/link");
      stdfs::create_symlink("../outside/secret", inside + "/relative_link");
    }
    stdfs::create_directory_symlink(outside, inside + "/folder_link");
    stdfs::create_directory_symlink("..", inside + "/up");
    stdfs::create_directory_symlink("/proc/self", inside + "/proc");
    stdfs::create_symlink("/dev/zero", inside + "/zero");
    REQUIRE(::mkfifo((inside + "/pipe").c_str(), 0600) == 0);
  }
  std::vector<std::string> names() const {
    return {"../outside/secret",
            "../../" + stdfs::path(root).filename().string() + "/outside/secret",
            outside + "/secret",
            "/" + outside + "/secret",
            "./../outside/secret",
            "x/../../outside/secret",
            "link",
            "relative_link",
            "folder_link/secret",
            "up/outside/secret",
            "proc/cwd",
            "proc/fd/0",
            "zero",
            "pipe",
            "..",
            ".",
            "",
            "/dev/zero",
            "/proc/self/environ",
            "/etc/passwd",
            "..\\outside\\secret",
            std::string("link\0x", 6)};
  }
};

/// One checkpoint whose metadata name `file`, as each of the formats with an index does.
void build_dcp(const Grounds& grounds, const std::string& file) {
  BuiltMetadata metadata;
  metadata.tensors = {{"a", "float32", {2, 2}, {{{0, 0}, {2, 2}}}}};
  const Bytes item = tensor_item({2, 2}, 1);
  metadata.items.push_back(
      {"a", Numbers{0, 0}, file, 0, static_cast<std::int64_t>(item.size()), {}});
  Grounds::write(grounds.inside + "/.metadata", build_metadata(metadata));
}

std::string json_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\0') {
      out += "\\u0000";
    } else {
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
  }
  return out;
}

const std::string kSafetensors = safetensors_of(
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, '\0'));

void build_index(const Grounds& grounds, const std::string& file) {
  Grounds::write(grounds.outside + "/secret", as_bytes(kSafetensors));
  Grounds::write(grounds.inside + "/model-00001-of-00002.safetensors", as_bytes(kSafetensors));
  const std::string index = fmt::format(
      R"({{"metadata":{{"total_size":8}},"weight_map":{{"a":"{}"}}}})", json_text(file));
  Grounds::write(grounds.inside + "/model.safetensors.index.json", as_bytes(index));
}

void build_snapshot(const Grounds& grounds, const std::string& file) {
  const std::string text = fmt::format(
      R"({{"version":"0.1.0","world_size":1,"manifest":{{"0":{{"type":"dict","keys":["a"]}},)"
      R"("0/a":{{"type":"Tensor","location":"{}","serializer":"buffer_protocol",)"
      R"("dtype":"torch.float32","shape":[2],"replicated":false,"byte_range":null}}}}}})",
      json_text(file));
  Grounds::write(grounds.inside + "/.snapshot_metadata", as_bytes(text));
}

/// A sound checkpoint whose seal lists `file`.
void build_seal(const Grounds& grounds, const std::string& file) {
  build_dcp(grounds, "__0_0.distcp");
  Grounds::write(grounds.inside + "/__0_0.distcp", tensor_item({2, 2}, 1));
  const std::string seal = fmt::format(
      R"({{"schema":"tessera.manifest/1","format":"torch-dcp","tool":"t","source":{{"path":"p",)"
      R"("format":"f","tensors":1,"bytes":1}},"files":[{{"path":"{}","size":{},)"
      R"("crc32_per_mib":["00000000"]}}],"sharded":[]}})",
      json_text(file), tensor_item({2, 2}, 1).size());
  Grounds::write(grounds.inside + "/tessera.manifest.json", as_bytes(seal));
}

struct Totals {
  int attempts = 0;
  int refused = 0;
  std::size_t opened = 0;
};

/// Files in which the kernel states this process' limits, at paths that no checkpoint gives.
bool states_limits(const std::string& path) {
  return path == fmt::format("/proc/{}/cgroup", ::getpid()) || path == "/proc/self/cgroup" ||
         path.starts_with("/sys/fs/cgroup/");
}

/// Every verb over `path`; what they opened must lie in the checkpoint's folder, or be `linked`, a
/// file that a link there leads to.
void try_all(const Grounds& grounds, const std::string& path, Totals& totals,
             const std::string& linked = "") {
  const auto fs = make_posix_file_system();
  const std::string out = grounds.root + "/out";
  watch_opens();
  int refusals = 0;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      CHECK(error.code() != Code::kInternal);
      ++refusals;
    }
  };
  attempt([&] { open_checkpoint(*fs, path); });
  attempt([&] {
    OpenedCheckpoint opened = open_checkpoint(*fs, path);
    opened.locate_all({});
    hash_checkpoint(opened);
  });
  attempt([&] {
    VerifyOptions options;
    options.level = VerifyLevel::kFull;
    if (!verify_checkpoint(*fs, path, options).ok) ++refusals;
  });
  attempt([&] {
    ConvertOptions options;
    options.source = path;
    options.destination = out;
    options.to = "torch-dcp";
    convert(*fs, options);
  });
  stdfs::remove_all(out);
  ++totals.attempts;
  totals.refused += refusals > 0;
  for (const std::string& opened : opened_paths()) {
    if (states_limits(opened)) continue;
    ++totals.opened;
    const bool ours = opened == grounds.root || opened == grounds.inside ||
                      opened.starts_with(grounds.inside + "/") || opened == out ||
                      opened.starts_with(out + "/") || opened.starts_with(grounds.root + "/.out") ||
                      (!linked.empty() && (opened == linked || opened == grounds.outside));
    if (!ours) FAIL_CHECK("opened " << opened);
  }
}

}  // namespace

TEST_CASE("no name in a checkpoint opens anything outside of its folder") {
  const Grounds grounds;
  Totals totals;
  using Build = void (*)(const Grounds&, const std::string&);
  const std::pair<const char*, Build> formats[] = {{"torch-dcp", build_dcp},
                                                   {"safetensors index", build_index},
                                                   {"torchsnapshot", build_snapshot},
                                                   {"seal", build_seal}};
  for (const auto& [format, build] : formats) {
    for (const std::string& name : grounds.names()) {
      INFO(format << " names \"" << name << "\"");
      grounds.clear();
      const bool is_link = name.starts_with("link") || name == "relative_link";
      grounds.add_traps(is_link);
      build(grounds, name);
      const int before = totals.refused;
      try_all(grounds, grounds.inside, totals, is_link ? grounds.outside + "/secret" : "");
      if (std::string(format) != "seal" && !is_link) CHECK(totals.refused == before + 1);
    }
  }
  fmt::print("escapes by name: {} attempts, {} refused, {} files and folders opened, 0 outside\n",
             totals.attempts, totals.refused, totals.opened);
  REQUIRE(totals.attempts >= 60);
}

TEST_CASE("a link in the place of a file is that file, and no pipe and device is opened") {
  const Grounds grounds;
  Totals totals;
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"dcp/fsdp2_w2_model_only", {".metadata", "__0_0.distcp", "__1_0.distcp"}},
      {"safetensors/hf_sharded",
       {"model.safetensors.index.json", "model-00001-of-00003.safetensors"}},
      {"torchsnapshot/model_optim_w2", {".snapshot_metadata"}},
  };
  for (const auto& [sample_name, files] : cases) {
    for (const std::string& file : files) {
      for (const std::string kind : {"link", "relative link", "proc", "device", "pipe", "folder"}) {
        INFO(sample_name << ", " << file << " is a " << kind);
        grounds.clear();
        stdfs::copy(case_path(sample_name), grounds.inside, stdfs::copy_options::recursive);
        const std::string path = grounds.inside + "/" + file;
        stdfs::rename(path, grounds.outside + "/moved");
        if (kind == "link") stdfs::create_symlink(grounds.outside + "/moved", path);
        if (kind == "relative link") stdfs::create_symlink("../outside/moved", path);
        if (kind == "proc") stdfs::create_symlink("/proc/self/environ", path);
        if (kind == "device") stdfs::create_symlink("/dev/zero", path);
        if (kind == "pipe") REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
        if (kind == "folder") stdfs::create_directory(path);
        const int before = totals.refused;
        const bool is_link = kind == "link" || kind == "relative link";
        try_all(grounds, grounds.inside, totals, is_link ? grounds.outside + "/moved" : "");
        CHECK(totals.refused == before + (is_link ? 0 : 1));
      }
    }
  }
  // Pointers that lead away.
  for (const std::string target : {std::string("../outside/run"), grounds.outside + "/run",
                                   std::string("ck/../../outside/run"), std::string("..")}) {
    for (const bool is_link : {false, true}) {
      INFO("latest is " << target << ", link " << is_link);
      grounds.clear();
      const std::string pointer = grounds.inside + "/latest";
      if (is_link) stdfs::create_symlink(target, pointer);
      if (!is_link) Grounds::write(pointer, as_bytes(target));
      try_all(grounds, grounds.inside, totals);
    }
  }
  fmt::print("escapes by kind: {} attempts, {} refused, {} files and folders opened, 0 outside\n",
             totals.attempts, totals.refused, totals.opened);
  REQUIRE(totals.attempts >= 40);
}

TEST_CASE("a file that turns into a link over and over is never followed") {
  constexpr int kSwaps = 100'000;
  const Grounds grounds;
  stdfs::copy(case_path("dcp/fsdp2_w2_model_only"), grounds.inside, stdfs::copy_options::recursive);
  const std::string file = grounds.inside + "/__0_0.distcp";
  const std::string link = grounds.inside + "/other";
  stdfs::copy_file(file, grounds.outside + "/decoy");
  stdfs::create_symlink(grounds.outside + "/decoy", link);
  std::atomic<bool> over{false};
  std::atomic<int> swaps{0};
  std::thread swapper([&] {
    for (; swaps < kSwaps; ++swaps)
      ::renameat2(AT_FDCWD, file.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE);
    over = true;
  });
  const auto fs = make_posix_file_system();
  const auto directory = fs->open_directory(grounds.inside);  // follows no link at all
  int read = 0, refused = 0;
  watch_opens();
  while (!over) {
    try {
      Bytes first(16);
      directory->open("__0_0.distcp")->read_at(0, first);
      ++read;
    } catch (const Error& error) {
      // kIo: the kernel gave up after a hundred lookups that raced with renames.
      const bool clean = error.code() == Code::kCorrupt || error.code() == Code::kNotFound ||
                         error.code() == Code::kIo;
      CHECK(clean);
      ++refused;
    }
  }
  swapper.join();
  for (const std::string& opened : opened_paths()) {
    INFO(opened);
    CHECK((opened == grounds.root || opened == grounds.inside ||
           opened.starts_with(grounds.inside + "/")));
  }
  fmt::print(
      "escapes by swapping: {} swaps of a file and a link, {} loads right, {} refused, 0 opened "
      "outside\n",
      swaps.load(), read, refused);
  REQUIRE(swaps >= kSwaps);
  REQUIRE(read + refused > 10);
  REQUIRE(refused > 0);
}
