#include "lib/storage/simulate/memory_tree.h"

#include <cerrno>
#include <deque>
#include <mutex>
#include <vector>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

constexpr int kMaxLinks = 40;  // as Linux

void push_front(std::deque<std::string>& queue, std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (!part.empty() && part != ".") parts.emplace_back(part);
    path = slash == std::string_view::npos ? std::string_view{} : path.substr(slash + 1);
  }
  queue.insert(queue.begin(), parts.begin(), parts.end());
}

struct Step {
  NodePtr node;
  std::string name;
};

std::string path_of(const std::vector<Step>& stack) {
  std::string path;
  for (std::size_t i = 1; i < stack.size(); ++i) path += "/" + stack[i].name;
  return path.empty() ? "/" : path;
}

}  // namespace

MemoryNode::~MemoryNode() {
  if (used_bytes) *used_bytes -= data.size();
}

std::uint64_t MemoryNode::size_bytes() const {
  const std::shared_lock lock(data_mutex);
  return data.size();
}

FileInfo node_info(std::string name, const MemoryNode& node) {
  return {std::move(name), node.type, node.size_bytes(), node.mtime_ns.load()};
}

Lookup look_up(const NodePtr& root, std::string_view path, bool follow_last) {
  std::vector<Step> stack{{root, ""}};
  std::deque<std::string> todo;
  push_front(todo, path);
  int links = 0;
  Lookup found;
  while (!todo.empty()) {
    const std::string part = todo.front();
    todo.pop_front();
    const NodePtr at = stack.back().node;
    if (at->type != FileType::kDirectory) return {nullptr, "", nullptr, "", ENOTDIR};
    if (part == "..") {
      if (stack.size() > 1) stack.pop_back();
      continue;
    }
    const auto child = at->children.find(part);
    if (child == at->children.end()) {
      if (!todo.empty()) return {nullptr, "", nullptr, "", ENOENT};
      return {at, part, nullptr, join_path(path_of(stack), part), 0};
    }
    if (child->second->type == FileType::kSymlink && (follow_last || !todo.empty())) {
      if (++links > kMaxLinks) return {nullptr, "", nullptr, "", ELOOP};
      const std::string& target = child->second->target;
      if (!target.empty() && target.front() == '/') stack.resize(1);
      push_front(todo, target);
      continue;
    }
    stack.push_back({child->second, part});
  }
  const NodePtr parent = stack.size() > 1 ? stack[stack.size() - 2].node : nullptr;
  return {parent, stack.back().name, stack.back().node, path_of(stack), 0};
}

NodePtr look_up_beneath(const NodePtr& start, std::string_view start_path,
                        std::string_view relative) {
  NodePtr at = start;
  std::string path(start_path);
  const auto components = confined_components(relative, start_path, /*allow_empty=*/true);
  for (std::size_t i = 0; i < components.size(); ++i) {
    if (at->type != FileType::kDirectory) return nullptr;
    const auto child = at->children.find(components[i]);
    if (child == at->children.end()) return nullptr;
    at = child->second;
    path = join_path(path, components[i]);
    if (at->type == FileType::kSymlink && i + 1 < components.size()) fail_link(path);
  }
  return at;
}

}  // namespace tessera::storage
