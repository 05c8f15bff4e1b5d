#pragma once
// Members of one optimizer's groups while parameters are replaced: by FQN, or by ids that are
// numbered anew in the order of the groups.
//
// rewrite() must be called once per list, in stored order, before new ids are asked for by others
// than itself: ids are given out by the order in which members were named by name_id.
#include <tessera/state/value.h>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct GroupEdit {
  std::vector<std::string> olds;  // FQNs
  std::vector<std::string> made;
};

class MemberLists {
 public:
  explicit MemberLists(std::span<const GroupEdit> edits);

  /// Ids alone: the next one of the groups, in their order.
  void name_id(const std::string& id, const std::string& fqn);
  /// The FQN of an id; the id itself when nothing is known of it.
  std::string fqn_of(const std::string& id) const;
  /// The number of a made parameter, or of a kept id, after the edits.
  std::string new_id(const std::string& fqn) const;
  std::string kept_id(const std::string& id) const;

  /// A group's `params`, or the list of all groups, with old members replaced. Throws
  /// kInvalidArgument when the parts of a fused parameter lie in different groups.
  Value rewrite(const Value& value) const;
  /// The option `param_names`: names in the order of the members.
  Value rewrite_names(const Value& value) const;

 private:
  struct Place {
    std::size_t edit = 0;
    std::size_t old = 0;
  };
  const Place* place_of(const std::string& fqn) const;
  void number() const;

  std::vector<GroupEdit> edits_;
  std::map<std::string, Place> places_;
  std::vector<std::pair<std::string, std::string>> ids_;  // id, FQN; as listed
  std::map<std::string, std::string> fqns_;               // by id
  mutable bool numbered_ = false;
  mutable std::map<std::string, std::string> kept_;  // old id -> new
  mutable std::map<std::string, std::string> made_;  // FQN -> new id
};

}  // namespace tessera
