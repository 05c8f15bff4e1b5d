#include "lib/format/hdf5/tree.h"

#include <tessera/base/error.h>

namespace tessera::h5 {
namespace {

/// A link is not empty, not ".", and holds neither '/' nor NUL.
std::string link_of(const PathItem& item) {
  const std::string text = item.text();
  if (text.empty()) return "%";
  if (text == ".") return "%2E";
  std::string out;
  for (const char c : text) {
    if (c == '/')
      out += "%2F";
    else if (c == '\0')
      out += "%00";
    else
      out += c;
  }
  return out;
}

void extend(std::string& path, const std::string& link) {
  path += (path.empty() ? "" : "/") + link;
}

}  // namespace

std::uint32_t NameTree::add_child(std::uint32_t parent, const std::string& link) {
  const auto index = static_cast<std::uint32_t>(nodes_.size());
  nodes_.emplace_back();
  nodes_[parent].children.emplace(link, index);
  return index;
}

std::string NameTree::add_leaf(const Path& path, std::uint32_t leaf) {
  TESSERA_CHECK(!path.empty());
  std::uint32_t at = 0;
  std::string text;
  std::size_t i = 0;
  for (; i + 1 < path.size(); ++i) {
    const std::string link = link_of(path[i]);
    const auto found = nodes_[at].children.find(link);
    if (found != nodes_[at].children.end() && nodes_[found->second].leaf) break;
    at = found != nodes_[at].children.end() ? found->second : add_child(at, link);
    extend(text, link);
  }
  std::string link = link_of(path[i]);
  for (++i; i < path.size(); ++i) link += "." + link_of(path[i]);
  while (nodes_[at].children.contains(link)) link += "~";
  nodes_[add_child(at, link)].leaf = leaf;
  extend(text, link);
  return text;
}

std::optional<std::uint32_t> NameTree::group(std::span<const PathItem> path, std::string& text) {
  std::uint32_t at = 0;
  text.clear();
  for (const PathItem& item : path) {
    const std::string link = link_of(item);
    const auto found = nodes_[at].children.find(link);
    if (found != nodes_[at].children.end() && nodes_[found->second].leaf) return std::nullopt;
    at = found != nodes_[at].children.end() ? found->second : add_child(at, link);
    extend(text, link);
  }
  return at;
}

}  // namespace tessera::h5
