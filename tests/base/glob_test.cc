#include <tessera/base/text.h>

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "tests/support/growth.h"

namespace glob_test {

using tessera::glob_match;
using tessera::testing::processor_seconds;

namespace {

/// The definition, by recursion: exponential, for short names only. Stars, marks and letters.
bool matches_slowly(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return matches_slowly(pattern.substr(1), name) ||
           (!name.empty() && matches_slowly(pattern, name.substr(1)));
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         matches_slowly(pattern.substr(1), name.substr(1));
}

}  // namespace

TEST_CASE("a star crosses dots and a mark takes one character") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("layers.*.weight", "layers.0.attn.weight"));
  CHECK_FALSE(glob_match("layers.*.weight", "layers.0.attn.bias"));
  CHECK(glob_match("layer?", "layer7"));
  CHECK_FALSE(glob_match("layer?", "layer"));
  CHECK_FALSE(glob_match("layer?", "layer10"));
  CHECK_FALSE(glob_match("", "x"));
  CHECK(glob_match("", ""));
}

TEST_CASE("a glob matches the whole name") {
  CHECK_FALSE(glob_match("weight", "layer.weight"));
  CHECK_FALSE(glob_match("layer", "layer.weight"));
}

TEST_CASE("classes hold ranges, negation and a leading bracket") {
  CHECK(glob_match("x[a-c]", "xb"));
  CHECK_FALSE(glob_match("x[a-c]", "xd"));
  CHECK(glob_match("x[!a-c]", "xd"));
  CHECK(glob_match("x[^a-c]", "xd"));
  CHECK_FALSE(glob_match("x[!a-c]", "xa"));
  CHECK(glob_match("x[]]", "x]"));
  CHECK(glob_match("x[a-]", "x-"));
  CHECK(glob_match("x[\\]a]", "x]"));
  CHECK(glob_match("layers.[0-9].w", "layers.3.w"));
  CHECK_FALSE(glob_match("layers.[0-9].w", "layers.30.w"));
}

TEST_CASE("an unclosed bracket stands for itself") {
  CHECK(glob_match("a[b", "a[b"));
  CHECK_FALSE(glob_match("a[b", "ab"));
}

TEST_CASE("a backslash quotes the next character") {
  CHECK(glob_match("a\\*b", "a*b"));
  CHECK_FALSE(glob_match("a\\*b", "axb"));
  CHECK(glob_match("a\\[0]", "a[0]"));
  CHECK(glob_match("a\\", "a\\"));
}

TEST_CASE("globs agree with their definition on short random names") {
  std::mt19937_64 random(11);
  const auto text = [&random](std::string_view letters, std::size_t longest) {
    std::string out(random() % (longest + 1), ' ');
    for (char& c : out) c = letters[random() % letters.size()];
    return out;
  };
  int matched = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string pattern = text("ab*?", 7);
    const std::string name = text("ab", 8);
    INFO("seed 11: \"" << pattern << "\" on \"" << name << '"');
    const bool expected = matches_slowly(pattern, name);
    matched += expected;
    REQUIRE(glob_match(pattern, name) == expected);
  }
  CHECK(matched > 1000);
}

TEST_CASE("a pathological glob takes no exponential time") {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "a*";
  pattern += "b";
  const std::string name(20000, 'a');
  CHECK(processor_seconds([&] { CHECK_FALSE(glob_match(pattern, name)); }) < 2);
}

}  // namespace glob_test
