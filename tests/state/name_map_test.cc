// Renaming rules: what matches, in which order, and what is refused.
#include <tessera/base/error.h>
#include <tessera/state/name_map.h>

#include <catch2/catch.hpp>
#include <functional>

namespace name_map_test {

using namespace tessera;

namespace {

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalidArgument);
    return error.status().message;
  }
  return {};
}

}  // namespace

TEST_CASE("stars on the right stand for those on the left, in order") {
  NameRules rules;
  rules.renames = {{"layers.*.attn.*", "h.*.self_attention.*"}, {"*.norm", "*.ln"}, {"a*b*", "*"}};
  NameMap map(rules);
  CHECK(map.apply("layers.3.attn.wq.weight") == "h.3.self_attention.wq.weight");
  CHECK(map.apply("blocks.1.norm") == "blocks.1.ln");
  CHECK(map.apply("axxbyy") == "xx");
  CHECK(map.apply("norm") == "norm");
  CHECK(map.apply("layers.3.attn") == "layers.3.attn");
  CHECK(map.apply("ab") == "");
}

TEST_CASE("the prefix goes first, then the map, then the first rename that matches") {
  NameRules rules;
  rules.strip_prefix = "module.";
  rules.map = {{"head.weight", "lm_head.weight"}};
  rules.renames = {{"head.*", "x.*"}, {"*.weight", "y"}};
  NameMap map(rules);
  CHECK(map.apply("module.head.weight") == "lm_head.weight");
  CHECK(map.apply("head.bias") == "x.bias");
  CHECK(map.apply("module.emb.weight") == "y");
  CHECK(map.apply("module.") == "module.");
  map.check_all_used();
}

TEST_CASE("rules that match nothing, and two names that become one, are named") {
  NameRules unused;
  unused.renames = {{"nothing.*", "x.*"}};
  NameMap map(unused);
  map.apply("something");
  CHECK(message_of([&] { map.check_all_used(); }).find("nothing.*") != std::string::npos);

  NameRules merging;
  merging.renames = {{"a.*", "c"}};
  NameMap merge(merging);
  std::string message = message_of([&] { merge.check_bijection({"a.1", "a.2"}); });
  CHECK(message.find("a.1") != std::string::npos);
  CHECK(message.find("a.2") != std::string::npos);
  CHECK(message.find("\"c\"") != std::string::npos);
  NameMap taken(merging);
  CHECK_FALSE(message_of([&] { taken.check_bijection({"a.1", "c"}); }).empty());
  NameMap fine(merging);
  fine.check_bijection({"a.1", "b"});

  NameRules twice;
  twice.map = {{"a", "b"}, {"a", "c"}};
  CHECK_FALSE(message_of([&] { NameMap{twice}; }).empty());
}

TEST_CASE("OLD=NEW") {
  CHECK(parse_rename("a.*=b.*") == std::pair<std::string, std::string>{"a.*", "b.*"});
  CHECK(parse_rename("a=b=c") == std::pair<std::string, std::string>{"a", "b=c"});
  for (const char* bad : {"a", "=b", "a=", "a=b.*", "*=**"}) {
    INFO(bad);
    CHECK_FALSE(message_of([&] { parse_rename(bad); }).empty());
  }
}

}  // namespace name_map_test
