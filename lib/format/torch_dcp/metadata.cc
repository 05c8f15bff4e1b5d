#include "lib/format/torch_dcp/metadata.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/pickle_reader.h>

#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/format/torch_dcp/metadata_nodes.h"
#include "lib/format/torch_dcp/names.h"

namespace tessera::dcp {
namespace {

using Node = MetadataNodes::Node;

/// DCP's own class, or the subclass that Megatron-core 0.6 to 0.15 pickles.
bool is_metadata_class(std::string_view module, std::string_view name) {
  if (module == kMegatronModule) return name == "MCoreMetadata";
  return name == "Metadata" && (module == kMetadataModule || module == kMetadataModule113);
}

/// Walks one graph and fills one DcpMetadata.
class Parser : private MetadataNodes {
 public:
  Parser(const PickleGraph& graph, std::size_t bytes, DcpMetadata& out)
      : MetadataNodes(graph, bytes), out_(out) {}

  void run() {
    const Node root = graph_.root();
    const auto cls = class_of(root);
    if (!cls || !is_metadata_class(cls->first, cls->second)) {
      fail(Code::kCorrupt,
           fmt::format("the top object is {}, not torch.distributed.checkpoint.metadata.Metadata",
                       describe(root)));
    }
    old_module_ = cls->first == kMetadataModule113;
    read_entries(field(root, "state_dict_metadata"));
    read_planner_data(optional_field(root, "planner_data"));
    read_storage(field(root, "storage_data"));
    read_storage_meta(optional_field(root, "storage_meta"));
    read_version(optional_field(root, "version"));
    read_megatron_data(optional_field(root, "mcore_data"));
    read_plans(optional_field(root, "all_local_plans"));
    note_other_attributes(root);
    out_.dialect = dialect();
  }

 private:
  void read_entries(Node node) {
    require_dict(node, "state_dict_metadata");
    const auto items = graph_.dict_items(node);
    out_.entries.reserve(items.size() / 2);
    index_.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view name = string(items[i], "a key of state_dict_metadata");
      const auto number = static_cast<std::uint32_t>(out_.entries.size());
      if (!index_.emplace(name, number).second) {
        fail(Code::kCorrupt,
             fmt::format("state_dict_metadata names \"{}\" twice", printable(name)));
      }
      in_tensor(name, [&] { out_.entries.push_back(entry(copy(name), items[i + 1])); });
    }
  }

  DcpEntry entry(std::string name, Node node) {
    DcpEntry made;
    made.name = std::move(name);
    made.path.push_back(key_item(copy(made.name)));
    const auto cls = class_of(node);
    if (cls && cls->second == "BytesStorageMetadata") return made;
    require_class(node, "TensorStorageMetadata");
    made.is_tensor = true;
    read_properties(field(node, "properties"), made);
    const std::size_t start = out_.coordinates.size();
    append_size(field(node, "size"), "size", out_.coordinates);
    made.spec.shape = Shape::checked(std::span(out_.coordinates).subspan(start));
    out_.coordinates.resize(start);
    made.spec.size_bytes();  // throws on overflow
    read_chunks(field(node, "chunks"), made);
    return made;
  }

  /// The state is (dtype, layout, requires_grad, memory format, pin_memory); only two matter.
  void read_properties(Node node, DcpEntry& made) {
    require_class(node, "TensorProperties");
    if (class_of(node)->first == kShardedTensorModule) old_properties_ = true;
    const auto state = graph_.state(node);
    std::optional<Node> dtype;
    if (state && graph_.kind(*state) == PickleKind::kTuple && !graph_.items(*state).empty()) {
      const auto items = graph_.items(*state);
      dtype = items[0];
      if (items.size() > 2 && graph_.kind(items[2]) == PickleKind::kBool) {
        made.requires_grad = graph_.boolean(items[2]);
      }
    } else if (state && graph_.kind(*state) == PickleKind::kDict) {
      dtype = graph_.find(*state, "dtype");
    }
    if (!dtype || graph_.kind(*dtype) != PickleKind::kGlobal ||
        graph_.global(*dtype).first != "torch") {
      fail(Code::kCorrupt, "its properties name no torch dtype");
    }
    const std::string_view name = graph_.global(*dtype).second;
    const auto known = dtype_from_torch_name(name);
    if (!known) fail(Code::kUnsupported, fmt::format("dtype torch.{}", printable(name)));
    made.spec.dtype = *known;
  }

  void read_chunks(Node node, DcpEntry& made) {
    if (graph_.kind(node) != PickleKind::kList) fail(Code::kCorrupt, "its chunks are no list");
    made.first_coordinate = out_.coordinates.size();
    const auto rank = static_cast<std::size_t>(made.spec.shape.rank());
    for (const Node chunk : graph_.items(node)) {
      require_class(chunk, "ChunkStorageMetadata");
      const std::size_t start = out_.coordinates.size();
      const std::size_t origin =
          append_size(field(chunk, "offsets"), "offsets of a chunk", out_.coordinates);
      const std::size_t sizes =
          append_size(field(chunk, "sizes"), "sizes of a chunk", out_.coordinates);
      if (origin != rank || sizes != rank) {
        fail(Code::kCorrupt, fmt::format("a chunk has {} offsets and {} sizes, the tensor {} "
                                         "dimensions",
                                         origin, sizes, rank));
      }
      for (std::size_t d = 0; d < rank; ++d) {
        if (!checked_add(out_.coordinates[start + d], out_.coordinates[start + rank + d])) {
          fail(Code::kCorrupt, "a chunk ends beyond 2^63");
        }
      }
      Shape::checked(std::span(out_.coordinates).subspan(start + rank, rank));
      ++made.chunk_count;
    }
  }

  void read_planner_data(std::optional<Node> node) {
    if (!node || graph_.kind(*node) == PickleKind::kNone) return;
    if (graph_.kind(*node) != PickleKind::kDict) {
      note(Finding::kUnknownAttribute, Severity::kInfo, "planner_data is no dict and was ignored");
      return;
    }
    out_.has_planner_data = true;
    const auto items = graph_.dict_items(*node);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto found = index_.find(string(items[i], "a key of planner_data"));
      if (found == index_.end()) continue;  // a key that was not saved
      Path stored;
      in_tensor(found->first, [&] { stored = path(items[i + 1]); });
      // Every writer joins the path to the name: what disagrees is damage, and the name is what the
      // data is found by.
      if (dotted(stored) == found->first)
        out_.entries[found->second].path = std::move(stored);
      else
        note(Finding::kUnknownAttribute, Severity::kWarning,
             fmt::format("the path of \"{}\" in planner_data is that of \"{}\" and was ignored",
                         found->first, dotted(stored)));
    }
  }

  Path path(Node node) {
    if (graph_.kind(node) != PickleKind::kTuple && graph_.kind(node) != PickleKind::kList) {
      fail(Code::kCorrupt, "its path in planner_data is no tuple");
    }
    Path made;
    const auto items = graph_.items(node);
    if (items.size() > static_cast<std::size_t>(kMaxValueDepth)) {
      fail(Code::kCorrupt, fmt::format("its path has {} steps", items.size()));
    }
    for (const Node item : items) {
      PathItem step;
      if (graph_.kind(item) == PickleKind::kString) {
        step.key = copy(graph_.text(item));
      } else {
        step.kind = PathItem::Kind::kIndex;
        step.index = non_negative(item, "a step of its path");
      }
      made.push_back(std::move(step));
    }
    return made;
  }

  void read_storage(Node node) {
    require_dict(node, "storage_data");
    const auto items = graph_.dict_items(node);
    out_.storage.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      require_class(items[i], "MetadataIndex");
      const std::string_view name = string(field(items[i], "fqn"), "fqn of a MetadataIndex");
      in_tensor(name, [&] { read_item(name, items[i], items[i + 1]); });
    }
  }

  void read_item(std::string_view name, Node index, Node info) {
    require_class(info, "_StorageInfo");
    note_storage_class(class_of(info)->first);
    DcpStorage item;
    const auto found = index_.find(name);
    if (found != index_.end()) {
      item.entry = found->second;
    } else {
      out_.orphans.push_back(copy(name));
    }
    item.first_coordinate = out_.coordinates.size();
    const auto origin = optional_field(index, "offset");
    if (origin && graph_.kind(*origin) != PickleKind::kNone) {
      item.has_origin = true;
      item.rank = static_cast<std::uint32_t>(
          append_size(*origin, "offset of a MetadataIndex", out_.coordinates));
    }
    item.file = file(string(field(info, "relative_path"), "relative_path"));
    item.offset = static_cast<std::uint64_t>(non_negative(field(info, "offset"), "offset"));
    item.length = static_cast<std::uint64_t>(non_negative(field(info, "length"), "length"));
    item.codecs = codec_chain(optional_field(info, "transform_descriptors"));
    out_.storage.push_back(item);
  }

  void note_storage_class(std::string_view module) {
    if (module == kFilesystemModule || module == kFilesystemModule113) return;
    if (storage_module_.empty()) storage_module_ = std::string(module);
  }

  std::uint32_t file(std::string_view path) {
    // Items of one file follow each other. Before the first, the last path is "" and no file.
    if (!out_.files.empty() && path == last_path_) return last_file_;
    const auto [found, fresh] =
        files_.emplace(std::string(path), static_cast<std::uint32_t>(out_.files.size()));
    if (fresh) out_.files.push_back(found->first);
    last_path_ = found->first;
    last_file_ = found->second;
    return last_file_;
  }

  std::uint32_t codec_chain(std::optional<Node> node) {
    if (!node || graph_.kind(*node) == PickleKind::kNone) return 0;
    const auto kind = graph_.kind(*node);
    if (kind != PickleKind::kList && kind != PickleKind::kTuple) {
      fail(Code::kCorrupt, "transform_descriptors is no list");
    }
    std::vector<std::string> chain;
    for (const Node item : graph_.items(*node)) {
      chain.push_back(copy(string(item, "a transform descriptor")));
    }
    if (chain.empty()) return 0;
    if (chain.size() > 16) fail(Code::kUnsupported, "more than 16 transforms on one item");
    for (std::size_t i = 0; i < out_.codecs.size(); ++i) {
      if (out_.codecs[i] == chain) return static_cast<std::uint32_t>(i + 1);
    }
    if (out_.codecs.size() >= 64) fail(Code::kUnsupported, "more than 64 chains of transforms");
    out_.codecs.push_back(std::move(chain));
    return static_cast<std::uint32_t>(out_.codecs.size());
  }

  void read_storage_meta(std::optional<Node> node) {
    has_storage_meta_ = node.has_value();
    if (!node || !class_of(*node)) return;
    if (const auto id = optional_field(*node, "checkpoint_id")) {
      const std::string text = path_text(*id);
      if (!text.empty()) out_.provenance["checkpoint_id"] = text;
    }
    for (const std::string_view name : {"save_id", "load_id"}) {
      const auto value = optional_field(*node, name);
      if (value && graph_.kind(*value) == PickleKind::kString) {
        out_.provenance[std::string(name)] = std::string(graph_.text(*value));
      }
    }
  }

  void read_version(std::optional<Node> node) {
    if (!node || graph_.kind(*node) != PickleKind::kString) return;
    version_ = std::string(graph_.text(*node));
    out_.provenance["dcp_version"] = version_;
    if (!version_.starts_with("1.")) {
      note(Finding::kUnknownAttribute, Severity::kWarning,
           fmt::format("metadata version {} is newer than the known 1.x", printable(version_)));
    }
  }

  /// {key: {} or {"nd_reformulated_orig_global_shape": shape}}
  void read_megatron_data(std::optional<Node> node) {
    if (!node || graph_.kind(*node) != PickleKind::kDict) return;
    const auto items = graph_.dict_items(*node);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view name = string(items[i], "a key of mcore_data");
      if (graph_.kind(items[i + 1]) != PickleKind::kDict) continue;
      const auto shape = graph_.find(items[i + 1], "nd_reformulated_orig_global_shape");
      const auto found = index_.find(name);
      if (!shape || found == index_.end() || !out_.entries[found->second].is_tensor) continue;
      in_tensor(name, [&] {
        const std::size_t start = out_.coordinates.size();
        append_size(*shape, "nd_reformulated_orig_global_shape", out_.coordinates);
        out_.provenance["megatron.flattened_ranges"] = "yes";
        out_.regrouped[found->second] = Shape::checked(std::span(out_.coordinates).subspan(start));
        out_.coordinates.resize(start);
      });
    }
  }

  void read_plans(std::optional<Node> node) {
    if (!node || graph_.kind(*node) != PickleKind::kList) return;
    out_.plan_count = static_cast<std::int64_t>(graph_.items(*node).size());
  }

  void note_other_attributes(Node root) {
    const auto state = graph_.state(root);
    const auto items = graph_.dict_items(*state);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::string_view name = string(items[i], "an attribute's name");
      if (name == "state_dict_metadata" || name == "planner_data" || name == "storage_data" ||
          name == "storage_meta" || name == "version") {
        continue;
      }
      if (name == "all_local_plans" || name == "mcore_data") megatron_ = true;
      if (name == "mcore_data") continue;
      note(Finding::kUnknownAttribute, Severity::kInfo,
           fmt::format("Metadata has the extra attribute \"{}\", which tensors and values do not "
                       "depend on",
                       printable(name)));
    }
  }

  std::string dialect() const {
    std::string text = "DCP, PyTorch ";
    if (old_module_) {
      text += "1.13";
    } else if (old_properties_) {
      text += "2.0 to 2.2";
    } else if (!version_.empty()) {
      text += fmt::format("2.10 or newer (version {})", printable(version_));
    } else {
      text += has_storage_meta_ ? "2.4 to 2.9" : "2.3";
    }
    if (storage_module_.starts_with("olmo_core.")) {
      text += ", OLMo-core's writer";
    } else if (!storage_module_.empty()) {
      text += fmt::format(", writer {}", printable(storage_module_));
    }
    if (megatron_) text += ", Megatron attributes";
    return text;
  }

  void note(Finding code, Severity severity, std::string message) {
    out_.notes.push_back({code, severity, std::move(message), "", ""});
  }

  DcpMetadata& out_;
  std::unordered_map<std::string_view, std::uint32_t> index_;  // name -> entry; views of the graph
  std::unordered_map<std::string, std::uint32_t> files_;
  std::string_view last_path_;
  std::uint32_t last_file_ = 0;
  std::string storage_module_;
  std::string version_;
  bool old_module_ = false;
  bool old_properties_ = false;
  bool has_storage_meta_ = false;
  bool megatron_ = false;
};

}  // namespace

std::span<const std::int64_t> DcpMetadata::origin(const DcpEntry& entry, std::size_t chunk) const {
  const auto rank = static_cast<std::size_t>(entry.spec.shape.rank());
  return std::span(coordinates).subspan(entry.first_coordinate + 2 * rank * chunk, rank);
}
std::span<const std::int64_t> DcpMetadata::sizes(const DcpEntry& entry, std::size_t chunk) const {
  const auto rank = static_cast<std::size_t>(entry.spec.shape.rank());
  return std::span(coordinates).subspan(entry.first_coordinate + 2 * rank * chunk + rank, rank);
}
std::span<const std::int64_t> DcpMetadata::origin(const DcpStorage& item) const {
  return std::span(coordinates).subspan(item.first_coordinate, item.rank);
}

DcpMetadata parse_metadata(ByteView bytes, std::string_view file, bool collect_denied) {
  return in_file(file, [&] {
    if (bytes.empty()) fail(Code::kCorrupt, "the file is empty: the save was interrupted");
    DcpMetadata out;
    PickleOptions options;
    options.collect_denied = collect_denied;
    options.globals = &out.globals;
    const PickleGraph graph = read_pickle(bytes, options);
    try {
      Parser(graph, bytes.size(), out).run();
    } catch (const Error&) {
      // What is no metadata still names globals, which is all that is asked here.
      if (!collect_denied) throw;
      DcpMetadata only_globals;
      only_globals.globals = std::move(out.globals);
      out = std::move(only_globals);
    }
    for (Note& note : out.notes) note.file = std::string(file);
    for (GlobalUse& use : out.globals) use.file = std::string(file);
    return out;
  });
}

}  // namespace tessera::dcp
