#include "lib/encoding/torch_root.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <optional>
#include <string>
#include <tuple>

#include "lib/encoding/pickle_decode.h"
#include "lib/encoding/pickle_memory.h"
#include "lib/encoding/torch_modules.h"
#include "lib/state/flattened_size.h"

namespace tessera {
namespace {

[[noreturn]] void refuse_root(std::string_view what) {
  fail(
      Code::kUnsupported,
      fmt::format("the saved object is a {}, not a dict of tensors: its class would have to be run",
                  printable(what)),
      "save its state_dict() instead");
}

/// The class of the object that a call makes: of a tensor's subclass not the function that rebuilds
/// it.
std::string class_of(const PickleGraph& graph, PickleGraph::Node call) {
  const PickleGraph::Node callable = graph.callable(call);
  if (graph.kind(callable) != PickleKind::kGlobal) return "call's result";
  auto [module, name] = graph.global(callable);
  const auto arguments = graph.items(graph.arguments(call));
  if (module == "torch._tensor" && name.starts_with("_rebuild_from_type") && arguments.size() > 1 &&
      graph.kind(arguments[1]) == PickleKind::kGlobal)
    std::tie(module, name) = graph.global(arguments[1]);
  return fmt::format("{}.{}", module, name);
}

}  // namespace

void decode_archive_root(const PickleGraph& graph, TensorResolver& resolver,
                         const ArchiveOptions& options, TorchArchive& archive) {
  const PickleGraph::Node root = graph.root();
  const PickleKind kind = graph.kind(root);
  const bool is_call = kind == PickleKind::kReduce || kind == PickleKind::kNewObj;
  resolver.check_calls();
  std::optional<TorchModules> modules;
  if (options.modules_as_state)
    modules.emplace(graph, resolver, archive, options.pickle_limit_bytes);
  if (modules && modules->empty()) modules.reset();  // decoding need not ask then
  const bool is_module = modules && modules->find(root);
  if (is_module && !options.allow_opaque_root)
    if (const std::string unread = modules->only_unread(root); !unread.empty()) refuse_root(unread);
  // Before decoding: objects of unknown classes (modules) may refer to themselves.
  if (is_call && !options.allow_opaque_root && !is_module && !is_plain_call(graph, root) &&
      !resolver(root))
    refuse_root(class_of(graph, root));
  archive.root = decode_pickle(
      graph, root, [&](const PickleGraph&, PickleGraph::Node node) { return resolver(node); },
      modules ? [&](PickleGraph::Node node) { return modules->find(node); } : ModuleHook(),
      options.pickle_limit_bytes);
  const std::uint64_t bytes = stream_bytes(graph), granted = options.pickle_limit_bytes;
  if (!flattens_within(archive.root, pickle_memory_bytes(bytes, granted)))
    refuse_pickle_memory(bytes, granted);
  if (archive.root.kind() == Value::Kind::kOpaque && !options.allow_opaque_root)
    refuse_root(archive.root.as_opaque().global());
  resolver.name_notes();
}

}  // namespace tessera
