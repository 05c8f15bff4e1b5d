// Reads every include line of the toolkit and holds it against the layer order of the design.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace layers_test {

namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

/// What each layer may include besides itself. reshard has one exception more, in may_include().
const std::map<std::string, Names> kUses = {
    {"base", {}},
    {"tensor", {"base"}},
    {"layout", {"base", "tensor"}},
    {"state", {"base", "tensor", "layout"}},
    {"storage", {"base"}},
    {"encoding", {"base", "storage", "tensor", "layout", "state"}},
    {"format", {"base", "storage", "encoding", "tensor", "layout", "state"}},
    {"reshard", {"base", "tensor", "layout", "state", "storage"}},
    {"ops", {"base", "tensor", "layout", "state", "reshard", "storage", "encoding", "format"}},
    {"live",
     {"base", "tensor", "layout", "state", "reshard", "ops", "storage", "encoding", "format"}},
    {"mpi", {"base"}},
    {"tools",
     {"base", "tensor", "layout", "state", "reshard", "ops", "storage", "encoding", "format"}},
};

/// The same for the folders of fsdp_core, lowest first: no folder names one that stands below it here.
const std::map<std::string, Names> kRuntimeUses = {
    {"layout", {}},
    {"stream", {}},
    {"comm", {}},
    {"params", {"layout"}},
    {"runtime", {"layout", "stream", "params"}},
    {"bridge", {"stream", "params", "runtime"}},
    {"simulate", {"stream", "params", "runtime"}},
    {"setup", {"params", "runtime", "bridge"}},
    {"precision", {"runtime"}},
    {"optim", {"params", "runtime"}},
    {"state_dict", {"params", "runtime", "bridge"}},
    {"tools", {}},
};

struct Include {
  fs::path file;  // relative to the repository
  int line = 0;
  std::string target;  // as written between the brackets or quotes
};

std::vector<Include> includes_below(const std::string& folder) {
  std::vector<Include> found;
  const fs::path root = TESSERA_SOURCE_DIR;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    const auto extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc") continue;
    std::ifstream in(entry.path());
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const auto hash = line.find_first_not_of(" \t");
      if (hash == std::string::npos || line[hash] != '#') continue;
      const auto open = line.find_first_of("<\"");
      if (line.find("include") == std::string::npos || open == std::string::npos) continue;
      const auto close = line.find_first_of(">\"", open + 1);
      found.push_back(
          {entry.path().lexically_relative(root), number, line.substr(open + 1, close - open - 1)});
    }
  }
  return found;
}

/// The layer of a file of ours ("" for the umbrella header): include/tessera/base/x.h,
/// lib/base/x.cc, tools/x.cc.
std::string layer_of_file(const fs::path& file) {
  std::vector<std::string> parts(file.begin(), file.end());
  if (parts[0] == "tools") return "tools";
  const std::size_t at = parts[0] == "include" ? 2 : 1;
  return at + 1 < parts.size() ? parts[at] : "";
}

/// The layer an include line names, or "" when it is not ours.
std::string layer_of_target(const std::string& target) {
  std::vector<std::string> parts;
  for (const auto& part : fs::path(target)) parts.push_back(part.string());
  if (parts.size() >= 3 && (parts[0] == "tessera" || parts[0] == "lib")) return parts[1];
  if (parts.size() >= 2 && parts[0] == "tools") return "tools";
  return {};
}

bool may_include(const std::string& from, const std::string& to, const std::string& target) {
  if (from == to) return true;
  const bool codec = target == "tessera/encoding/codec.h" || target == "lib/encoding/codec.h";
  if (from == "reshard" && codec) return true;
  return kUses.at(from).contains(to);
}

std::string place(const Include& include) {
  return include.file.string() + ":" + std::to_string(include.line) + " includes " + include.target;
}

std::vector<Include> toolkit_includes() {
  std::vector<Include> all;
  for (const char* folder : {"include", "lib", "tools"})
    for (Include& include : includes_below(folder)) all.push_back(std::move(include));
  return all;
}

}  // namespace

TEST_CASE("every layer uses only what stands to its left") {
  int ours = 0;
  for (const Include& include : toolkit_includes()) {
    const std::string from = layer_of_file(include.file);
    const std::string to = layer_of_target(include.target);
    if (from.empty() || to.empty() || from == "fsdp" || to == "fsdp") continue;
    ++ours;
    INFO(place(include));
    REQUIRE(kUses.contains(from));
    REQUIRE(kUses.contains(to));
    CHECK(may_include(from, to, include.target));
  }
  CHECK(ours > 50);
}

TEST_CASE("a shelf of ops uses only the shelves below it") {
  // Each after those it may use; inspect and edit stand beside each other.
  const std::map<std::string, Names> uses = {
      {"seal", {}},
      {"open", {"seal"}},
      {"scan", {"seal", "open"}},
      {"inspect", {"seal", "open", "scan"}},
      {"edit", {"seal", "open", "scan"}},
      {"verify", {"seal", "open", "scan", "inspect", "edit"}},
      {"convert", {"seal", "open", "scan", "inspect", "edit", "verify"}},
      {"audit", {"seal", "open", "scan", "inspect", "edit", "verify"}},
  };
  const std::map<std::string, std::string> public_headers = {
      {"seal", "seal"},       {"hashed_tensor", "seal"},
      {"open", "open"},       {"select", "open"},
      {"scan", "scan"},       {"ls", "inspect"},
      {"show", "inspect"},    {"stat", "inspect"},
      {"summary", "inspect"}, {"hash", "inspect"},
      {"diff", "inspect"},    {"optim", "inspect"},
      {"rename", "edit"},     {"rules", "edit"},
      {"transform", "edit"},  {"rank_state_policy", "edit"},
      {"verify", "verify"},   {"convert", "convert"},
      {"audit", "audit"},
  };
  // "lib/ops/open/select.cc", "tessera/ops/select.h", "include/tessera/ops/select.h" -> "open";
  // "" outside of ops.
  const auto shelf_of = [&](const fs::path& path) -> std::string {
    std::vector<std::string> parts(path.begin(), path.end());
    if (parts[0] == "include") parts.erase(parts.begin());
    if (parts.size() < 3 || parts[1] != "ops") return {};
    if (parts[0] == "lib") return parts[2];
    const auto found = public_headers.find(fs::path(parts[2]).stem().string());
    return found == public_headers.end() ? parts[2] : found->second;
  };
  int edges = 0;
  for (const Include& include : toolkit_includes()) {
    const std::string from = shelf_of(include.file);
    const std::string to = shelf_of(include.target);
    if (from.empty() || to.empty()) continue;
    ++edges;
    INFO(place(include));
    REQUIRE(uses.contains(from));
    REQUIRE(uses.contains(to));
    CHECK((from == to || uses.at(from).contains(to)));
  }
  CHECK(edges > 100);
}

TEST_CASE("every folder of the runtime uses only what stands above it in the list") {
  int between = 0;
  for (const Include& include : includes_below("fsdp_core")) {
    const auto parts = [](const fs::path& path) {
      return std::vector<std::string>(path.begin(), path.end());
    };
    const std::vector<std::string> from = parts(include.file), to = parts(include.target);
    INFO(place(include));
    CHECK(to[0] != "lib");
    CHECK(to[0] != "tools");
    if (to[0] != "fsdp_core" || from[1] == "third_party_stubs") continue;
    REQUIRE(kRuntimeUses.contains(from[1]));
    REQUIRE(kRuntimeUses.contains(to[1]));
    between += from[1] != to[1];
    CHECK((from[1] == to[1] || kRuntimeUses.at(from[1]).contains(to[1])));
  }
  CHECK(between > 30);
}

TEST_CASE("process-wide objects of the runtime are those that its page lists") {
  using Object = std::pair<std::string, std::string>;  // file, name
  std::set<Object> found, listed;
  const fs::path root = TESSERA_SOURCE_DIR;
  const std::regex made(
      R"(^(?:\s*(?:static (?!const\b|constexpr\b)|thread_local )[^()=]*|std::(?:mutex|atomic|map|vector|unordered_\w+)\b[^()=]*))"
      R"([ *&](\w+)(?: = .*|\{.*)?;)");
  for (const char* folder : {"fsdp_core", "lib/live"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
      std::ifstream in(entry.path());
      std::smatch match;
      for (std::string line; std::getline(in, line);)
        if (std::regex_search(line, match, made))
          found.emplace(entry.path().lexically_relative(root).string(), match[1]);
    }
  // | `file` | `name`, `name` | why |
  std::ifstream page(root / "docs/fsdp_runtime.md");
  const std::regex row(R"(^\| `((?:fsdp_core|lib/live)/[^`]+)` \| ([^|]+) \|)"), name("`(\\w+)`");
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (!std::regex_search(line, match, row)) continue;
    const std::string file = match[1], names = match[2];
    for (std::sregex_iterator at(names.begin(), names.end(), name), end; at != end; ++at)
      listed.emplace(file, (*at)[1]);
  }
  CHECK(found.size() >= 10);
  for (const auto& [file, object] : found) {
    INFO(file << ": " << object << " is process-wide, and docs/fsdp_runtime.md does not list it");
    CHECK(listed.contains({file, object}));
  }
  for (const auto& [file, object] : listed) {
    INFO("docs/fsdp_runtime.md lists " << object << " of " << file << ", which is not there");
    CHECK(found.contains({file, object}));
  }
}

TEST_CASE("a format uses only the formats that it is built on") {
  // Each with the formats it may use. torch_files is no format: what torch.save files share.
  const std::map<std::string, Names> uses = {
      {"torch_files", {}},
      {"torch_save", {"torch_files"}},
      {"safetensors", {}},
      {"hdf5", {"safetensors"}},  // a state that is no tree of tensors is JSON in both
      {"torch_dcp", {}},
      {"torch_rank_files", {"torch_files", "torch_dcp"}},  // placements of DTensors
      {"torchsnapshot", {"torch_files"}},
      {"nanotron", {}},
      {"olmo_local", {"torch_files", "torch_rank_files"}},           // what ranks keep of their own
      {"hf_trainer", {"torch_files", "torch_save", "safetensors"}},  // weights and their optimizer
      {"torch_checkpointing", {"torch_files", "torch_rank_files"}},  // DTensors of ranks
      {"fairscale_fsdp", {"torch_files"}},
      // Families: one framework's older and newer files.
      {"deepspeed_zero", {"torch_files"}},
      {"deepspeed_universal", {"torch_files", "deepspeed_zero"}},
      {"megatron_torch", {"torch_files"}},
      {"megatron_dist", {"torch_files", "torch_dcp", "megatron_torch"}},
  };
  // "lib/format/hdf5/reader.cc" -> "hdf5"; "" of files beside the folders.
  const auto format_of = [](const fs::path& path) -> std::string {
    const std::vector<std::string> parts(path.begin(), path.end());
    const bool inside = parts.size() > 3 && parts[0] == "lib" && parts[1] == "format";
    return inside ? parts[2] : std::string();
  };
  int edges = 0;
  for (const Include& include : includes_below("lib/format")) {
    const std::string from = format_of(include.file);
    const std::string to = format_of(include.target);
    // A format's public header names its driver and its flags; only the registry puts drivers
    // together.
    const bool shared = include.target == "tessera/format/format_driver.h" ||
                        include.target == "tessera/format/format_options.h" ||
                        include.target == "tessera/format/training_folder.h";
    if (!from.empty() && include.target.starts_with("tessera/format/") && !shared) {
      INFO(place(include));
      const std::string named = fs::path(include.target).stem().string();
      CHECK((named == from || uses.at(from).contains(named)));
    }
    if (from.empty() || to.empty() || from == to) continue;
    ++edges;
    INFO(place(include));
    REQUIRE(uses.contains(from));
    REQUIRE(uses.contains(to));
    CHECK(uses.at(from).contains(to));
  }
  CHECK(edges > 30);
}

TEST_CASE("the toolkit never includes LibTorch, HDF5 or the runtime") {
  for (const Include& include : toolkit_includes()) {
    const std::string first = fs::path(include.target).begin()->string();
    INFO(place(include));
    const bool runtime_header = include.file.string().starts_with("include/tessera/fsdp");
    if (!runtime_header) {
      for (const char* banned : {"torch", "ATen", "c10", "fsdp_core"}) CHECK(first != banned);
      CHECK_FALSE(include.target.starts_with("tessera/fsdp"));
    }
    const bool hdf5_tool = include.file.string().starts_with("tools/hdf5_helper/");
    if (!hdf5_tool) {
      CHECK(first != "hdf5.h");
      CHECK(first != "H5Cpp.h");
    }
  }
}

TEST_CASE("private headers stay private") {
  for (const Include& include : includes_below("include")) {
    INFO(place(include));
    CHECK_FALSE(include.target.starts_with("lib/"));
  }
}

TEST_CASE("costly libraries are included in one place") {
  Names json;
  Names cli;
  for (const Include& include : toolkit_includes()) {
    if (include.target.starts_with("nlohmann/")) json.insert(include.file.string());
    if (include.target.starts_with("CLI/")) cli.insert(include.file.string());
    const bool header = include.file.extension() == ".h";
    INFO(place(include));
    CHECK_FALSE((header && include.target.starts_with("fmt/")));
  }
  for (const auto& file : json) CHECK(file == "lib/encoding/json.cc");
  CHECK(cli.size() <= 1);
}

}  // namespace layers_test
