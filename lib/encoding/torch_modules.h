#pragma once
// Modules of torch.nn that a pickle holds as objects, read as what their state_dict() holds. By
// structure, nothing is run: pickle keeps a module as its class and its __dict__,
//
//   torch.nn.modules.linear.Linear.__new__() with BUILD {"training": True,
//       "_parameters": {"weight": tensor, "bias": None}, "_buffers": {}, "_modules": {},
//       "_non_persistent_buffers_set": set(), "_forward_hooks": OrderedDict(), ..,
//       "in_features": 3, "out_features": 4}
//
// and state_dict() is, module by module, its parameters, its buffers but for those of that set, and
// then the modules below it, each name behind those of the modules around it; None is left out.
// Which classes do no more than that: tests/interop/modules_test.py asks PyTorch.
//
// A module that is no such object (of a class elsewhere, or with hooks that change what state_dict()
// gives) is an entry of its own, and stays an object.
//
// Source: torch/nn/modules/module.py (_save_to_state_dict, state_dict).
#include <tessera/encoding/torch_archive.h>

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/encoding/pickle_decode.h"
#include "lib/encoding/torch_tensors.h"

namespace tessera {

/// LeftOut::reason of what modules hold besides their state_dict().
inline constexpr std::string_view kLeftByModules = "options, hooks and other attributes of modules";

class TorchModules {
 public:
  using Node = PickleGraph::Node;

  /// Finds the modules at the root, and in dicts and lists from there on. What they hold besides
  /// becomes archive.left_out, and a note for each. Throws kCorrupt where modules that stand in many
  /// places expand to more than a pickle of its size should, kResourceExhausted past `limit_bytes`
  /// (ArchiveOptions::pickle_limit_bytes).
  TorchModules(const PickleGraph& graph, TensorResolver& resolver, TorchArchive& archive,
               std::uint64_t limit_bytes);

  bool empty() const { return trees_.empty(); }
  /// Names and values of the state_dict(), or nullptr: no such module.
  const ModuleEntries* find(Node node) const;

  /// The class of a module below `root` that is not read, where nothing beside such modules is;
  /// "" where there is something, or nothing at all.
  std::string only_unread(Node root) const;

 private:
  struct Parts {
    Node parameters, buffers, modules;
    std::unordered_set<std::string_view> unsaved;  // buffers
  };
  /// A module found, where it stands in the tree of modules.
  struct Open {
    Parts parts;
    Node node;
    std::string prefix;    // "0.", "" for the whole
    std::size_t next = 0;  // child
  };
  struct Tree {
    ModuleEntries entries;
    std::vector<std::size_t> unread;  // entries that are modules
    std::size_t modules = 0;
    std::vector<LeftOut> left_out;
    std::unordered_set<std::string> attributes;
  };

  bool any_module() const;
  void find_places();
  std::optional<Parts> parts_of(Node node) const;
  bool is_plain_dict(Node node) const;
  bool has_hooks(Node state, std::string_view key) const;
  std::optional<Tree> read(Node root);
  void open(Node node, Parts parts, std::string prefix, Tree& tree, std::vector<Open>& path);
  void add(std::string name, Node value, Tree& tree);
  void leave_out(std::string name, Node value, std::string_view why, Tree& tree);
  void report(Node root, const std::string& place, Tree& tree);

  const PickleGraph& graph_;
  TensorResolver& resolver_;
  TorchArchive& archive_;
  std::uint64_t limit_bytes_, left_bytes_;
  ValueBudget budget_;
  std::unordered_map<Node, Tree> trees_;
};

}  // namespace tessera
