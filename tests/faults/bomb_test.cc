// Small files that ask for much: every verb over them ends within two seconds of processor time and
// 128 MiB, in a process of its own.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tessera/base/error.h>
#include <tessera/encoding/json.h>
#include <tessera/ops/convert.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/ls.h>
#include <tessera/ops/show.h>
#include <tessera/ops/stat.h>
#include <tessera/ops/summary.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/memory_file_system.h>
#include <unistd.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "tests/support/dcp_builder.h"
#include "tests/support/hostile_bytes.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr double kMostSeconds = 2;
constexpr long kMostKiB = 128 << 10;
constexpr long kBareKiB = 16 << 10;  // what a command holds before it opens anything
constexpr std::size_t kMillion = 1'000'000;

struct Bomb {
  std::string name;
  std::vector<std::pair<std::string, std::string>> files;  // below /ck
  std::string path;
  bool looks = false;  // also by the verbs that look at values and elements
};

std::string repeated(const std::string& text, std::size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

const std::string kProto = std::string("\x80\x02", 2);

/// A torch.save file of one tensor of this size and stride over 16 bytes.
std::string tensor_pickle(const std::string& size, const std::string& stride) {
  return kProto + "ctorch._utils\n_rebuild_tensor_v2\n((" + "X\x07" + std::string(3, '\0') +
         "storagectorch\nFloatStorage\nX\x01" + std::string(3, '\0') + "0X\x03" +
         std::string(3, '\0') + "cpuK\x04tQK" + std::string(1, '\0') + size + stride +
         "\x89"
         "ccollections\nOrderedDict\n)RtR.";
}

std::string safetensors_of(std::string header) {
  return le(std::uint64_t{header.size()}) + header + std::string(8, '\0');
}

void add_pickles(std::vector<Bomb>& bombs) {
  const auto add = [&](const std::string& name, const std::string& pickle) {
    bombs.push_back(
        {"pickle: " + name, {{"a.pt", torch_zip_of(pickle, std::string(16, 'x'))}}, "/ck/a.pt"});
    bombs.push_back({".metadata: " + name, {{".metadata", pickle}}, "/ck"});
  };
  add("a million nested lists",
      kProto + repeated("]", kMillion) + repeated("a", kMillion - 1) + ".");
  add("a million nested tuples", kProto + "N" + repeated("\x85", kMillion) + ".");
  add("a million nested dicts",
      kProto + repeated("}K\x01", kMillion / 4) + "N" + repeated("s", kMillion / 4) + ".");
  add("a million marks", kProto + repeated("(", kMillion) + ".");
  add("a million nested reduces",
      kProto + repeated("ca\nb\n", 100'000) + repeated("\x85R", 99'999) + ".");
  add("a memo index of four billion", kProto + "]r\xff\xff\xff\xff.");
  add("a million memo entries", kProto + "N" + repeated("\x94", kMillion) + ".");
  add("tuples doubled sixty times", kProto + "N\x85" + repeated("q\x01h\x01\x86", 60) + ".");
  add("lists doubled forty times", kProto + "]" +
                                       repeated("q\x01]h\x01"
                                                "ah\x01"
                                                "a",
                                                40) +
                                       ".");
  add("a list inside itself", kProto +
                                  "]q\x01h\x01"
                                  "ah\x01"
                                  "ah\x01"
                                  "a.");
  add("a text of four gigabytes", kProto + "X\xff\xff\xff\xff.");
  add("a text of 2^63 bytes", std::string("\x80\x04\x8d", 3) + le(~std::uint64_t{0} >> 1) + ".");
  add("an integer of two gigabytes", kProto + "\x8b\xff\xff\xff\x7f.");
  add("a decimal of a million digits", "I" + repeated("9", kMillion) + "\n.");
  add("a long of a million digits", "L" + repeated("9", kMillion) + "L\n.");
  add("a frame of 2^60 bytes", std::string("\x80\x04\x95", 3) + le(std::uint64_t{1} << 60) + "N.");
  add("a hundred thousand equal keys", kProto + "}(" + repeated("K\x01N", 100'000) + "u.");
  const auto text_of = [](std::size_t bytes) {
    return "X" + le(static_cast<std::uint32_t>(bytes)) + repeated("v", bytes) + "q" +
           std::string(1, '\0');
  };
  const std::string again = "h" + std::string(1, '\0');
  add("one long text a hundred thousand times", kProto + "}X\x01" + std::string(3, '\0') + "x(" +
                                                    text_of(900'000) + repeated(again, 100'000) +
                                                    "ls.");
  std::string dicts;
  for (int i = 0; i < 2000; ++i) dicts += "J" + le(std::int32_t{i}) + "}" + again + "K\x01s";
  add("two thousand dicts with one long key", kProto + text_of(300'000) + "0}(" + dicts + "u.");
  std::string globals, keys;
  for (int i = 0; i < 80'000; ++i) globals += fmt::format("cm{}\nC\n", i);
  add("eighty thousand globals", kProto + "](" + globals + "e.");
  for (int i = 0; i < 80'000; ++i)
    keys += "X" + le(std::uint32_t{5}) + fmt::format("{:05}", i) + "N";
  add("eighty thousand keys", kProto + "}(" + keys + "u.");
  const std::string archive = torch_zip_of(kProto + "}(" + keys + "u.", "");
  const auto folder = [&](const std::string& name, std::vector<std::string> files) {
    bombs.push_back({name + ": eighty thousand keys", {}, "/ck"});
    for (std::string& file : files) bombs.back().files.emplace_back(std::move(file), archive);
  };
  folder("megatron-torch", {"mp_rank_00/model_optim_rng.pt"});
  folder("torch-rank-files", {"model_world_size_1_rank_0.pt"});
  folder("deepspeed-zero", {"zero_pp_rank_0_mp_rank_00_optim_states.pt"});
  folder("megatron-dist", {"common.pt"});
  add("a million pops and dups", kProto + "N" + repeated("20", kMillion / 2) + ".");
}

/// Modules of torch.nn that stand in many places, or in each other, or hold what no module does.
void add_modules(std::vector<Bomb>& bombs) {
  const auto text = [](const std::string& s) {
    return "X" + le(static_cast<std::uint32_t>(s.size())) + s;
  };
  const std::string keys[] = {text("_parameters"), text("_buffers"), text("_modules"), text("a"),
                              text("b")};
  const std::string begin = "ctorch.nn.modules.container\nSequential\n)\x81";
  std::string weight = tensor_pickle("K\x04\x85", "K\x01\x85").substr(2);  // no PROTO
  weight.pop_back();
  const auto module = [&](const std::string& modules) {
    return begin + "}(" + keys[0] + "}" + text("w") + weight + "s" + keys[1] + "}" + keys[2] +
           modules + "ub";
  };
  const auto add = [&](const std::string& name, const std::string& root) {
    for (const std::string& pickle : {root, "}" + text("m") + root + "s"})
      bombs.push_back({"module: " + name,
                       {{"a.pt", torch_zip_of(kProto + pickle + ".", std::string(16, 'x'))}},
                       "/ck/a.pt"});
  };
  const std::string put = std::string("q\0", 2), get = std::string("h\0", 2);
  std::string doubled = module("}") + put;
  for (int i = 0; i < 60; ++i)
    doubled += "0" + module("}(" + keys[3] + get + keys[4] + get + "u") + put;
  add("doubled sixty times", doubled);
  std::string nested = begin, closed;
  constexpr int kDeep = 20'000;
  for (int i = 0; i < kDeep; ++i) {
    nested += "}(" + keys[0] + "}" + keys[1] + "}" + keys[2] + "}" + keys[3] + begin;
    closed += "sub";
  }
  add("twenty thousand levels", nested + "}b" + closed);
  add("itself", begin + put + "}(" + keys[0] + "}" + keys[1] + "}" + keys[2] + "}(" + keys[3] +
                    get + keys[4] + get + "uub");
  std::string chain;
  const std::string name = text(std::string(60'000, 'n'));
  for (int i = 0; i < 150; ++i)
    chain += begin + "}(" + keys[0] + "}" + text("w") + weight + "s" + keys[1] + "}" + keys[2] +
             "}" + (i == 0 ? name + put : get);
  add("names of megabytes", chain + "N" + repeated("sub", 150));
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += text(fmt::format("{}", i)) + get;
  add("one module twenty thousand times",
      "(" + module("}") + put + "0" + module("}(" + many + "u") + "l");
  add(
      "eighty thousand parameters", begin + "}(" + keys[0] + "}(" + [&] {
        std::string all = text("p") + weight + put;
        for (int i = 0; i < 80'000; ++i) all += text(fmt::format("{}", i)) + get;
        return all;
      }() + "u" + keys[1] + "}" + keys[2] + "}ub");
}

/// A million objects of a byte each: in a list that is one value, and, with a dict in it, in one
/// that is entered.
void add_small_objects(std::vector<Bomb>& bombs) {
  const std::string tensor = tensor_pickle("K\x04\x85", "K\x01\x85").substr(2);  // no PROTO
  const std::string key = "X\x01" + std::string(3, '\0');
  const auto add = [&](const std::string& name, const std::string& objects) {
    for (const bool entered : {false, true}) {
      const std::string pickle = std::string("\x80\x04", 2) + "}(" + key + "l](" +
                                 (entered ? "}" : "") + objects + "e" + key + "w" +
                                 tensor.substr(0, tensor.size() - 1) + "u.";
      bombs.push_back({"objects: " + name + (entered ? ", entered" : ""),
                       {{"a.pt", torch_zip_of(pickle, std::string(16, 'x'))}},
                       "/ck/a.pt",
                       true});
    }
  };
  add("a million dicts", repeated("}", kMillion));
  add("a million lists", repeated("]", kMillion));
  add("a million None", repeated("N", kMillion));
  add("a million sets", repeated("\x8f", kMillion));
  add("a million times one list", "]" + repeated("2", kMillion));
  add("half a million small integers", repeated("K\x07", kMillion / 2));
  add("pairs of integers", repeated("K\x07K\x09\x86", kMillion / 5));
  std::string names;
  for (int i = 0; i < 60'000; ++i)
    names += "X" + le(std::uint32_t{7}) + fmt::format("n{:06}", i) + "h" + std::string(1, '\0');
  bombs.push_back({"objects: sixty thousand names of one tensor",
                   {{"a.pt", torch_zip_of(std::string("\x80\x02", 2) + "}(" + key + "w" +
                                              tensor.substr(0, tensor.size() - 1) + "q" +
                                              std::string(1, '\0') + names + "u.",
                                          std::string(16, 'x'))}},
                   "/ck/a.pt",
                   true});
}

void add_tensors(std::vector<Bomb>& bombs) {
  const auto add = [&](const std::string& name, const std::string& pickle) {
    bombs.push_back(
        {"shape: " + name, {{"a.pt", torch_zip_of(pickle, std::string(16, 'x'))}}, "/ck/a.pt"});
  };
  const std::string huge = std::string("\x8a\x06", 2) + le(std::uint64_t{1} << 40).substr(0, 6);
  add("a tebi of elements, stride 0",
      tensor_pickle(huge + "\x85", "K" + std::string(1, '\0') + "\x85"));
  add("a tebi of elements, stride 1", tensor_pickle(huge + "\x85", "K\x01\x85"));
  add("a product past 2^64", tensor_pickle(huge + huge + "\x86", huge + "K\x01\x86"));
  add("a thousand dims",
      tensor_pickle("(" + repeated("K\x01", 1000) + "t", "(" + repeated("K\x01", 1000) + "t"));
  const auto st = [&](const std::string& name, const std::string& header) {
    bombs.push_back(
        {"safetensors: " + name, {{"a.safetensors", safetensors_of(header)}}, "/ck/a.safetensors"});
  };
  st("a shape of 2^62",
     R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8]}})");
  st("a million dims",
     R"({"a":{"dtype":"F32","shape":[)" + repeated("1,", 400'000) + R"(1],"data_offsets":[0,4]}})");
  st("a million brackets", repeated("[", kMillion));
  st("a million nested objects", repeated(R"({"a":)", 200'000));
  st("a million zeros", R"({"a":)" + repeated("0", kMillion) + "}");
  std::string many = "{";
  for (int i = 0; i < 12'000; ++i)
    many += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                        i == 0 ? "" : ",", i);
  st("twelve thousand empty tensors", many + "}");
  std::string equal = "{";
  for (int i = 0; i < 12'000; ++i)
    equal += fmt::format(R"({}"t":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                         i == 0 ? "" : ",");
  st("twelve thousand equal names", equal + "}");
}

void add_archives(std::vector<Bomb>& bombs) {
  const auto add = [&](const std::string& name, const std::string& archive) {
    bombs.push_back({"zip: " + name, {{"a.pt", archive}}, "/ck/a.pt"});
  };
  const std::string kernel = deflated(std::string(64 << 20, 'a'));
  std::vector<ZipRecord> overlapping = {{"archive/data.pkl", kernel, 8, 64 << 20, 1}};
  for (int i = 0; i < 5000; ++i)
    overlapping.push_back({fmt::format("archive/data/{}", i), "", 8, 0, 0, 0});
  add("five thousand records in one place", zip_of(overlapping));
  add("a deflated pickle of 64 MiB", zip_of({{"archive/data.pkl", kernel, 8, 64 << 20, 1}}));
  add("a deflated storage of 64 MiB",
      zip_of({{"archive/data.pkl", tensor_pickle("K\x04\x85", "K\x01\x85")},
              {"archive/data/0", kernel, 8, 64 << 20, 1}}));
  std::vector<ZipRecord> many;
  for (int i = 0; i < 8000; ++i) many.push_back({fmt::format("archive/data/{}", i), "x"});
  add("eight thousand records", zip_of(many));
  std::vector<ZipRecord> equal(8000, {"archive/data.pkl", "N."});
  add("eight thousand equal names", zip_of(equal));
}

void add_folders(std::vector<Bomb>& bombs) {
  // An item that decodes to more than it may.
  std::string frame(ZSTD_compressBound(64 << 20), '\0');
  const std::string zeros(64 << 20, '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), zeros.data(), zeros.size(), 3));
  BuiltMetadata metadata;
  metadata.tensors = {{"a", "float32", {2, 2}, {{{0, 0}, {2, 2}}}}};
  metadata.items.push_back({"a",
                            Numbers{0, 0},
                            "__0_0.distcp",
                            0,
                            static_cast<std::int64_t>(frame.size()),
                            {"stream.zstd/1"}});
  const Bytes coded = build_metadata(metadata);
  bombs.push_back({"torch-dcp: a zstd item of 64 MiB",
                   {{".metadata", std::string(as_text(coded))}, {"__0_0.distcp", frame}},
                   "/ck"});
  // Boxes that all overlap, and a tensor far larger than its boxes.
  BuiltMetadata boxes;
  boxes.tensors = {{"a", "float32", {std::int64_t{1} << 30, 4}, {}}};
  for (int i = 0; i < 4000; ++i) {
    boxes.tensors[0].chunks.push_back({{i, 0}, {std::int64_t{1} << 29, 4}});
    boxes.items.push_back({"a", Numbers{i, 0}, "__0_0.distcp", 0, 64, {}});
  }
  const Bytes overlapping = build_metadata(boxes);
  bombs.push_back(
      {"torch-dcp: four thousand boxes over each other",
       {{".metadata", std::string(as_text(overlapping))}, {"__0_0.distcp", std::string(64, 'x')}},
       "/ck"});
  const std::string deep = repeated(R"({"a":)", 200'000);
  bombs.push_back({"index: a million deep", {{"model.safetensors.index.json", deep}}, "/ck"});
  bombs.push_back({"torchsnapshot: a million deep", {{".snapshot_metadata", deep}}, "/ck"});
  bombs.push_back({"seal: a million deep",
                   {{".metadata", std::string(as_text(coded))},
                    {"__0_0.distcp", frame},
                    {"tessera.manifest.json", deep}},
                   "/ck"});
  std::string map = R"({"weight_map":{)";
  for (int i = 0; i < 20'000; ++i)
    map +=
        fmt::format(R"({}"t{}":"model-{:05}-of-20000.safetensors")", i == 0 ? "" : ",", i, i + 1);
  bombs.push_back({"index: twenty thousand shards that are not there",
                   {{"model.safetensors.index.json", map + "}}"}},
                   "/ck"});
}

using Verb = std::function<void(MemoryFileSystem&, const std::string&)>;

const std::pair<const char*, Verb> kVerbs[] = {
    {"open", [](MemoryFileSystem& fs, const std::string& path) { open_checkpoint(fs, path); }},
    {"hash",
     [](MemoryFileSystem& fs, const std::string& path) {
       TransferOptions options;
       options.memory_limit_bytes = 16 << 20;
       ReadOptions read;
       read.memory_limit_bytes = options.memory_limit_bytes;
       OpenedCheckpoint opened = open_checkpoint(fs, path);
       opened.locate_all(read);
       // What it would take is known; whether somebody wants to wait is not ours to say.
       std::uint64_t bytes = 0;
       for (const StoredTensor& tensor : opened.manifest.tensors)
         bytes += static_cast<std::uint64_t>(tensor.spec.size_bytes());
       if (bytes < (std::uint64_t{1} << 28)) hash_checkpoint(opened, options);
     }},
    {"verify",
     [](MemoryFileSystem& fs, const std::string& path) {
       VerifyOptions options;
       options.level = VerifyLevel::kFull;
       options.transfer.memory_limit_bytes = 16 << 20;
       verify_checkpoint(fs, path, options);
     }},
};

TransferOptions small_transfer() {
  TransferOptions options;
  options.memory_limit_bytes = 16 << 20;
  return options;
}

const std::pair<const char*, Verb> kLooks[] = {
    {"summary",
     [](MemoryFileSystem& fs, const std::string& path) {
       OpenedCheckpoint opened = open_checkpoint(fs, path);
       summarize(opened);
     }},
    {"ls",
     [](MemoryFileSystem& fs, const std::string& path) {
       OpenedCheckpoint opened = open_checkpoint(fs, path);
       list_tensors(opened);
     }},
    {"stat",
     [](MemoryFileSystem& fs, const std::string& path) {
       OpenedCheckpoint opened = open_checkpoint(fs, path);
       StatOptions options;
       options.transfer = small_transfer();
       stat_checkpoint(opened, options);
     }},
    {"diff",
     [](MemoryFileSystem& fs, const std::string& path) {
       OpenedCheckpoint a = open_checkpoint(fs, path), b = open_checkpoint(fs, path);
       DiffOptions options;
       options.transfer = small_transfer();
       diff_checkpoints(a, b, options);
     }},
    {"show",
     [](MemoryFileSystem& fs, const std::string& path) {
       OpenedCheckpoint opened = open_checkpoint(fs, path);
       show(opened, "l", {});
     }},
};

struct Cost {
  double seconds = 0;
  long kib = 0;
};

/// A line of /proc/self/status, in KiB.
long status_kib(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":")) return std::atol(line.c_str() + key.size() + 1);
  return -1;
}
/// The peak of resident memory counts from now on.
bool forget_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5\n"); }

/// The most that a verb took in a process of its own.
Cost cost_of(const Bomb& bomb, const Verb& verb) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit{30, 30};
    ::setrlimit(RLIMIT_CPU, &limit);
    int exit = 0;
    long before = 0;
    {
      MemoryFileSystem fs;
      for (const auto& [name, content] : bomb.files)
        fs.write_file("/ck/" + name, as_bytes(content));
      before = status_kib("VmRSS");
      if (!forget_peak()) ::_exit(72);
      try {
        verb(fs, bomb.path);
      } catch (const Error& error) {
        if (error.code() == Code::kInternal) exit = 70;
      } catch (...) {
        exit = 71;
      }
    }  // taking it apart must not overflow the stack either
    const long grown = status_kib("VmHWM") - before;
    ::_exit(::write(ends[1], &grown, sizeof grown) == sizeof grown ? exit : 73);
  }
  ::close(ends[1]);
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  long grown = -1;
  const ssize_t told = ::read(ends[0], &grown, sizeof grown);
  ::close(ends[0]);
  INFO("wait status " << status);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  REQUIRE(told == sizeof grown);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return {seconds(usage.ru_utime) + seconds(usage.ru_stime), grown + kBareKiB};
}

}  // namespace

TEST_CASE("no bomb takes more than two seconds and 128 MiB") {
  std::vector<Bomb> bombs;
  add_pickles(bombs);
  add_small_objects(bombs);
  add_modules(bombs);
  add_tensors(bombs);
  add_archives(bombs);
  add_folders(bombs);
  Cost most;
  std::string slowest, largest;
  int runs = 0;
  for (const Bomb& bomb : bombs) {
    std::vector<std::pair<const char*, Verb>> verbs(std::begin(kVerbs), std::end(kVerbs));
    if (bomb.looks) verbs.insert(verbs.end(), std::begin(kLooks), std::end(kLooks));
    for (const auto& [name, verb] : verbs) {
      INFO(bomb.name << ", " << name);
      const Cost cost = cost_of(bomb, verb);
      ++runs;
      const int files = std::string_view(name) == "diff" ? 2 : 1;
      CHECK(cost.seconds <= kMostSeconds * files);
      CHECK(cost.kib <= kMostKiB * files);
      if (cost.seconds > most.seconds) slowest = bomb.name + ", " + name;
      if (cost.kib > most.kib) largest = bomb.name + ", " + name;
      most = {std::max(most.seconds, cost.seconds), std::max(most.kib, cost.kib)};
    }
  }
  fmt::print("bombs: {} in {} runs; the longest {:.2f} s ({}), the largest {} MiB ({})\n",
             bombs.size(), runs, most.seconds, slowest, most.kib >> 10, largest);
  REQUIRE(bombs.size() >= 50);
}

TEST_CASE("a hundred thousand tensors of one header are listed in little more than three headers") {
  constexpr int kTensors = 100'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i)
    header += fmt::format(R"({}"layer.{:06}.w":{{"dtype":"F32","shape":[1],)"
                          R"("data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, 4 * i, 4 * i + 4);
  header += "}";
  const Bomb file{"",
                  {{"a.safetensors", le(std::uint64_t{header.size()}) + header +
                                         std::string(std::size_t{4} * kTensors, '\0')}},
                  "/ck/a.safetensors"};
  const Cost cost = cost_of(file, [](MemoryFileSystem& fs, const std::string& path) {
    OpenedCheckpoint opened = open_checkpoint(fs, path);
    const LsRows rows(opened.manifest, {});
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (rows[i].name.empty()) fail(Code::kInternal, "a row without a name");
    if (list_all_but_rows(opened, rows).total_numel != kTensors)
      fail(Code::kInternal, "not all rows");
  });
  const auto header_kib = static_cast<long>(header.size() >> 10);
  CHECK(cost.kib - kBareKiB <= 3 * header_kib + (24 << 10));
}

TEST_CASE("a hundred thousand small entries open; more than the bound where the limit is raised") {
  const auto opens = [](const std::string& pickle, std::uint64_t limit) -> std::string {
    MemoryFileSystem fs;
    fs.write_file("/a.pt", as_bytes(torch_zip_of(pickle, std::string(16, 'x'))));
    OpenOptions options;
    options.read.pickle_limit_bytes = limit;
    try {
      OpenedCheckpoint opened = open_checkpoint(fs, "/a.pt", options);
      opened.locate_all({});
      return fmt::format("{} entries", opened.manifest.state.entries.size());
    } catch (const Error& error) {
      CHECK(error.code() == Code::kResourceExhausted);
      return error.status().hint;
    }
  };
  std::string numbers = kProto + "}(", names = numbers;
  for (int i = 0; i < 100'000; ++i) {
    numbers += "J" + le(std::int32_t{i}) + "N";
    names += "X" + le(std::uint32_t{7}) + fmt::format("n{:06}", i) + "K\x01";
  }
  CHECK(opens(numbers + "u.", 0) == "100000 entries");
  CHECK(opens(names + "u.", 0) == "100000 entries");
  const std::string tensor = tensor_pickle("K\x04\x85", "K\x01\x85").substr(2);  // no PROTO
  const auto key = [](const std::string& text) { return "X" + le(std::uint32_t{1}) + text; };
  const std::string lists = kProto + "}" + key("l") + "](" + repeated("]", 300'000) + "es" +
                            key("w") + tensor.substr(0, tensor.size() - 1) + "s.";
  CHECK_THAT(opens(lists, 0), Catch::Contains("--mem-limit"));
  CHECK(opens(lists, 256 << 20) == "2 entries");
}
