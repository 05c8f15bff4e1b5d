#pragma once
// Numbers of a model that rules are written in: "heads/groups". Given with the flag, else found by
// their keys, else by another parameter. Asked for only when a rule that applies needs them.
#include <tessera/ops/rules.h>

#include <string>

namespace tessera {

class RuleNumbers {
 public:
  RuleNumbers(const RuleSet& rules, const RulesRequest& request, const ModelNumber& number);
  /// Products and quotients of numbers and parameters, left to right; >= 1. Throws kInvalidArgument
  /// naming `fqn`, which needed it.
  std::int64_t evaluate(const std::string& expression, const std::string& fqn);

 private:
  std::int64_t operand(std::string_view text, const std::string& fqn, int depth);

  const RuleSet& rules_;
  const RulesRequest& request_;
  const ModelNumber& number_;
};

}  // namespace tessera
