#pragma once
// Numbers of a model that rules are written in: "heads/groups". Given with the flag, else counted in
// the checkpoint's own names, else found by their keys, else by another parameter. Asked for only
// when a rule that applies needs them.
#include <tessera/ops/rules.h>

#include <map>
#include <optional>
#include <string>

#include "lib/ops/edit/name_pattern.h"

namespace tessera {

class RuleNumbers {
 public:
  RuleNumbers(const RuleSet& rules, const RulesRequest& request,
              const std::map<std::string, Shape>& shapes, const ModelNumber& number);
  /// Products and quotients of numbers and parameters, left to right; >= 1. Throws kInvalidArgument
  /// naming `fqn`, which needed it.
  std::int64_t evaluate(const std::string& expression, const std::string& fqn);
  /// The numbers that names count from, as far as they are known.
  PatternNumbers of_names() const;

 private:
  std::int64_t operand(std::string_view text, const std::string& fqn, int depth);
  std::optional<std::int64_t> known(const RuleParameter& parameter) const;
  std::optional<std::int64_t> counted(const RuleParameter& parameter) const;

  const RuleSet& rules_;
  const RulesRequest& request_;
  const std::map<std::string, Shape>& shapes_;
  const ModelNumber& number_;
};

}  // namespace tessera
