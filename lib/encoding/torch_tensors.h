#pragma once
// From the nodes of a torch pickle to ArchiveTensors: storages, views, parameters, quantized and
// sparse tensors.
#include <tessera/encoding/pickle_reader.h>
#include <tessera/encoding/torch_archive.h>

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera {

struct StorageSize {
  std::uint64_t numel = 0;
  std::uint64_t bytes = 0;
};

class TensorResolver {
 public:
  using Node = PickleGraph::Node;
  /// Makes the storage named `key`, of which the pickle says that it holds `size`; throws kCorrupt
  /// when it does not.
  using OpenStorage = std::function<ArchiveStorage(std::string_view key, StorageSize size)>;

  TensorResolver(const PickleGraph& graph, TorchArchive& archive, OpenStorage open_storage);

  /// The hook of decode_pickle: answers for tensors and storages.
  std::optional<Value> operator()(Node node);

  /// Refuses what changes tensors and storages outside of the calls that make them, in every call
  /// and storage of the pickle, used or not: torch runs them all.
  void check_calls();

  /// Opens every storage that the pickle names, those that no tensor of the state is made of (an
  /// attribute of a tensor has one) with the others.
  void open_all_storages();

  /// Names the tensors of the notes by their places in archive.root, once that is decoded.
  void name_notes();

 private:
  /// What a persistent id names: a storage, or (legacy) a part of one.
  struct View {
    std::uint32_t storage = 0;
    std::optional<DType> dtype;      // nullopt: UntypedStorage
    std::uint64_t size_bytes = 0;    // of the part
    std::uint64_t offset_bytes = 0;  // where the part begins
    std::string key;
  };
  /// What a storage key stood for when it was met first: torch keeps that.
  struct FirstUse {
    DType dtype;
    std::string root;  // of a legacy view: its storage's key
    std::int64_t offset = 0;
    std::int64_t numel = 0;
    bool operator==(const FirstUse&) const = default;
  };

  [[noreturn]] static void corrupt(const std::string& what);
  static bool is_call(PickleKind kind);
  static bool is_tensor_class(std::string_view module, std::string_view name);
  static void need_arguments(std::span<const Node> arguments, std::size_t count,
                             std::string_view function);
  static std::int64_t elements_in(std::uint64_t bytes, DType dtype);

  // torch_tensor_checks.cc
  void check_call(Node node) const;
  void check_attributes(Node state) const;

  // torch_tensors.cc
  std::optional<std::uint32_t> tensor(Node node, int depth);
  std::optional<ArchiveTensor> make(Node node, int depth);
  std::optional<ArchiveTensor> make_torch_call(std::string_view name, Node arguments, int depth);
  std::optional<ArchiveTensor> make_from_type(Node arguments, int depth);
  std::optional<ArchiveTensor> make_wrapped(std::span<const Node> arguments, int depth);
  std::optional<ArchiveTensor> make_from_state(Node node, int depth);
  std::optional<ArchiveTensor> parameter(std::span<const Node> arguments, int depth);
  ArchiveTensor strided(std::span<const Node> arguments, std::optional<DType> dtype);
  ArchiveTensor quantized(std::span<const Node> arguments);
  ArchiveTensor sparse(std::span<const Node> arguments, int depth);
  ArchiveTensor meta(std::span<const Node> arguments);
  ArchiveTensor moved_to_device(std::span<const Node> arguments, int depth);
  void set_flags(ArchiveTensor& tensor, Node metadata) const;
  void note_attributes(Node state, int depth);
  void note_subclass(Node type);
  Value quantizer_values(Node node);

  // torch_tensor_storages.cc
  View storage(Node node);
  Value bare_storage(Node node);
  static void check_view(const ArchiveTensor& tensor, std::int64_t storage_numel,
                         std::string_view key);
  void check_storage(Node node);
  void check_first_use(std::string_view key, FirstUse use);
  void check_byte_order(const View& view, DType dtype) const;

  // torch_tensor_nodes.cc
  DType dtype(Node node) const;
  std::int64_t integer(Node node, std::string_view what) const;
  std::vector<std::int64_t> integers(Node node, std::string_view what) const;
  bool holds_storage(Node node) const;
  bool flag(Node node) const;
  std::string_view string(Node node, std::string_view what) const;

  const PickleGraph& graph_;
  TorchArchive& archive_;
  OpenStorage open_storage_;
  std::unordered_map<Node, std::optional<std::uint32_t>> tensors_;  // nullopt: no tensor
  std::unordered_map<std::string, std::uint32_t> storages_;
  std::unordered_map<std::string, FirstUse> first_uses_;
  std::set<std::string, std::less<>> attributes_;             // of tensors, reported
  std::vector<std::pair<std::size_t, std::uint32_t>> noted_;  // note -> the tensor it is about
};

}  // namespace tessera
