// Optimizers in PyTorch's flattened form: made from names and ids, and made names and ids again.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/state/optim_edit.h>
#include <tessera/state/roles.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/random_optimizer.h"
#include "tests/support/sanitized.h"

namespace optim_flatten_test {

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

constexpr std::uint64_t kSeed = 20261129;

std::map<std::string, std::string> content(const Manifest& manifest) {
  MemoryFileSystem fs;
  fs.make_directories("/none");
  return canonical_content(manifest, *fs.open_directory("/none"));
}

/// Paths and values, in no order; of a tensor its bytes.
std::map<std::string, std::string> entries(const Manifest& manifest) {
  std::map<std::string, std::string> out;
  for (const StateEntry& entry : manifest.state.entries) {
    std::string path;
    for (const PathItem& item : entry.path)
      path += fmt::format("[{}{}]", static_cast<int>(item.kind), item.text());
    out[path] = entry.name;
    if (entry.value.is_tensor()) {
      const StoredTensor& tensor = manifest.tensors[entry.value.tensor_index()];
      CHECK(tensor.name == entry.name);
      out[path] += fmt::format(" {} {}", tensor.spec.to_string(), manifest.source(tensor, 0).side);
    }
  }
  return out;
}

void check_values(const Manifest& a, const Manifest& b) {
  for (const StateEntry& entry : a.state.entries) {
    const StateEntry* other = b.state.find(entry.name);
    REQUIRE(other != nullptr);
    if (!entry.value.holds_tensors()) CHECK(other->value == entry.value);
  }
}

OptimDialect dialect_of(const Manifest& manifest) {
  return find_roles(manifest.state).optimizers.at(0).dialect;
}

Status failure(Manifest manifest) {
  try {
    rekey_optimizers(manifest, OptimKeys::kFlat);
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

PathItem key(const std::string& text) { return key_item(text); }

void add(Manifest& manifest, Path path, Value value) {
  StateEntry entry{dotted(path), std::move(path), std::move(value)};
  if (entry.value.is_tensor()) manifest.tensors[entry.value.tensor_index()].name = entry.name;
  manifest.state.entries.push_back(std::move(entry));
}

Value scalar(Manifest& manifest, std::uint8_t byte) {
  StoredTensor stored;
  stored.spec = {DType::kUInt8, Shape{}};
  stored.first_chunk = manifest.chunks.size();
  stored.chunk_count = 1;
  Source source;
  source.kind = Source::Kind::kInline;
  source.side = static_cast<std::uint32_t>(manifest.inline_bytes.size());
  source.length = 1;
  manifest.inline_bytes.push_back(Bytes(1, std::byte{byte}));
  manifest.chunks.add(Chunk::whole_of(Box::whole(Shape{})), source);
  manifest.tensors.push_back(std::move(stored));
  return Value::tensor(static_cast<std::uint32_t>(manifest.tensors.size() - 1));
}

/// Two parameters in two groups, "lr" as given.
Manifest small(const std::vector<Value>& rates, Manifest manifest = {}) {
  for (std::size_t g = 0; g < rates.size(); ++g) {
    const std::string fqn = fmt::format("layers.{}.w", g);
    const auto index = static_cast<std::int64_t>(g);
    add(manifest, {key("model"), key(fqn)}, scalar(manifest, 1));
    add(manifest, {key("optim"), key("state"), key(fqn), key("exp_avg")}, scalar(manifest, 2));
    add(manifest, {key("optim"), key("param_groups"), index_item(index), key("lr")}, rates[g]);
    add(manifest, {key("optim"), key("param_groups"), index_item(index), key("params")},
        Value::list({Value::string(fqn)}));
  }
  return manifest;
}

}  // namespace

TEST_CASE("an optimizer by names becomes what PyTorch's flattened form is, and comes back") {
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (std::uint64_t round = 0; round < draws(40U); ++round) {
      const auto which = static_cast<OptimizerKind>(kind);
      INFO(kind_text(which) << " seed " << kSeed << " round " << round);
      const Manifest named = random_optimizer(kSeed + round, which, OptimizerForm::kNames);
      const Manifest wanted = random_optimizer(kSeed + round, which, OptimizerForm::kFlat);
      Manifest flat = named;
      rekey_optimizers(flat, OptimKeys::kFlat);
      CHECK(entries(flat) == entries(wanted));
      check_values(flat, wanted);
      CHECK(content(flat) == content(named));
      Manifest twice = flat;
      CHECK(rekey_optimizers(twice, OptimKeys::kFlat).empty());
      CHECK(entries(twice) == entries(flat));
      rekey_optimizers(flat, OptimKeys::kFqn);
      CHECK(entries(flat) == entries(named));
      check_values(flat, named);
    }
}

TEST_CASE("ids become flattened names in one step, and names by which they come back") {
  std::size_t certain = 0;
  for (int kind = 0; kind < kOptimizerKinds; ++kind)
    for (std::uint64_t round = 0; round < draws(40U); ++round) {
      const auto which = static_cast<OptimizerKind>(kind);
      INFO(kind_text(which) << " seed " << kSeed << " round " << round);
      const Manifest ids = random_optimizer(kSeed + round, which, OptimizerForm::kIds);
      Manifest by_steps = ids, flat = ids;
      const Status refused = failure(ids);
      if (!refused.ok()) {
        CHECK_THAT(refused.message, Contains("could mean other parameters too"));
        continue;
      }
      ++certain;
      rekey_optimizers(by_steps, OptimKeys::kFqn);
      rekey_optimizers(by_steps, OptimKeys::kFlat);
      rekey_optimizers(flat, OptimKeys::kFlat);
      CHECK(entries(flat) == entries(by_steps));
      CHECK(dialect_of(flat) == OptimDialect::kFlat);
      CHECK(content(flat) == content(ids));
      rekey_optimizers(flat, OptimKeys::kId);
      CHECK(content(flat) == content(ids));
    }
  CHECK(certain > draws(300U));
}

TEST_CASE("a tensor among the options is one of each parameter, and one group's again") {
  Manifest made;
  const Value rate = scalar(made, 7);
  Manifest named = small({rate, Value::real(0.5)}, std::move(made));
  const std::string other = "layers.9.w";
  add(named, {key("model"), key(other)}, scalar(named, 1));
  for (StateEntry& entry : named.state.entries)
    if (entry.name == "optim.param_groups.0.params")
      entry.value = Value::list({Value::string("layers.0.w"), Value::string(other)});
  Manifest flat = named;
  rekey_optimizers(flat, OptimKeys::kFlat);
  const StateEntry* a = flat.state.find("optim.param_groups.layers.0.w.lr");
  const StateEntry* b = flat.state.find("optim.param_groups.layers.9.w.lr");
  REQUIRE((a != nullptr && b != nullptr));
  CHECK(a->value.tensor_index() != b->value.tensor_index());
  const OptimState optim = canonical_optim_states(flat, find_roles(flat.state)).at(0);
  REQUIRE(optim.groups.size() == 2);
  CHECK(optim.groups[0].members == std::vector<std::string>{"layers.0.w", other});
  CHECK(flat.tensors.size() == named.tensors.size() + 1);
  rekey_optimizers(flat, OptimKeys::kFqn);
  CHECK(entries(flat) == entries(named));
  CHECK(flat.tensors.size() == named.tensors.size());
}

TEST_CASE("tensors of flattened options are equal where checksums of their records say so") {
  Manifest flat;
  flat.files.push_back({"a", 100, 0, true});
  const auto stored = [&](std::uint64_t offset, std::uint32_t crc) {
    StoredTensor tensor;
    tensor.spec = {DType::kFloat32, Shape{}};
    tensor.first_chunk = flat.chunks.size();
    tensor.chunk_count = 1;
    flat.records.push_back({0, crc, offset, 4});
    Source source;
    source.kind = Source::Kind::kExtent;
    source.offset = offset;
    source.length = 4;
    source.record = static_cast<std::uint32_t>(flat.records.size());
    flat.chunks.add(Chunk::whole_of(Box::whole(Shape{})), source);
    flat.tensors.push_back(std::move(tensor));
    return Value::tensor(static_cast<std::uint32_t>(flat.tensors.size() - 1));
  };
  const std::uint32_t sums[] = {5, 6, 5, 6};
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::string fqn = fmt::format("layers.{}.w", i);
    add(flat, {key("optim"), key("param_groups." + fqn + ".lr")}, stored(8 * i, sums[i]));
    add(flat, {key("optim"), key("param_groups." + fqn + ".eps")}, Value::real(0.5));
  }
  const OptimState optim = canonical_optim_states(flat, find_roles(flat.state)).at(0);
  REQUIRE(optim.groups.size() == 2);
  CHECK(optim.groups[0].members == std::vector<std::string>{"layers.0.w", "layers.2.w"});
  CHECK(optim.groups[1].members == std::vector<std::string>{"layers.1.w", "layers.3.w"});
}

TEST_CASE("dicts inside of state are keys joined by dots, as PyTorch joins them") {
  Manifest named = small({Value::real(0.5), Value::real(0.25)});
  const Path state{key("optim"), key("state"), key("layers.0.w")};
  add(named, below(state, {key("shampoo"), key("left"), key("basis")}), scalar(named, 3));
  add(named, below(state, {key("shampoo"), int_key_item(1)}), scalar(named, 4));
  add(named, below(state, {key("history"), index_item(0)}), scalar(named, 5));
  Manifest flat = named;
  const std::vector<Note> notes = rekey_optimizers(flat, OptimKeys::kFlat);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0].message, Contains("integer keys inside of state became text"));
  const auto has = [&](const Path& path) {
    return std::ranges::any_of(flat.state.entries,
                               [&](const StateEntry& entry) { return entry.path == path; });
  };
  CHECK(has({key("optim"), key("state.layers.0.w.shampoo.left.basis")}));
  CHECK(has({key("optim"), key("state.layers.0.w.shampoo.1")}));
  CHECK(has({key("optim"), key("state.layers.0.w.history"), index_item(0)}));
  const OptimState optim = canonical_optim_states(flat, find_roles(flat.state)).at(0);
  REQUIRE(optim.parameters.size() == 2);
  CHECK(optim.parameters[0].find("shampoo.left.basis") != nullptr);
  CHECK(optim.parameters[0].find("history.0") != nullptr);
  rekey_optimizers(flat, OptimKeys::kFqn);
  for (StateEntry& entry : named.state.entries)
    for (PathItem& item : entry.path)
      if (item.kind == PathItem::Kind::kIntKey) item = key("1");
  CHECK(entries(flat) == entries(named));
}

TEST_CASE("options that are dicts or lists stay what they are") {
  Manifest named = small({Value::real(0.5), Value::real(0.25)});
  const Path group{key("optim"), key("param_groups"), index_item(1)};
  add(named, below(group, {key("extra"), key("depth")}), Value::integer(2));
  add(named, below(group, {key("rates"), index_item(0)}), scalar(named, 5));
  named.state.containers.push_back({below(group, "extra"), Value::Kind::kOrderedDict, {}, 5});
  Manifest flat = named;
  rekey_optimizers(flat, OptimKeys::kFlat);
  CHECK(flat.state.find("optim.param_groups.layers.1.w.extra.depth")->path.size() == 3);
  REQUIRE(flat.state.containers.size() == 1);
  CHECK(dotted(flat.state.containers[0].path) == "optim.param_groups.layers.1.w.extra");
  rekey_optimizers(flat, OptimKeys::kFqn);
  CHECK(entries(flat) == entries(named));
  REQUIRE(flat.state.containers.size() == 1);
  CHECK(flat.state.containers[0].path == below(group, "extra"));
}

TEST_CASE("an optimizer without any state has an empty one again") {
  Manifest named = small({Value::real(0.5), Value::real(0.25)});
  std::erase_if(named.state.entries,
                [](const StateEntry& entry) { return entry.name.starts_with("optim.state"); });
  named.state.containers.push_back({{key("optim"), key("state")}, Value::Kind::kDict, {}, 1});
  Manifest flat = named;
  rekey_optimizers(flat, OptimKeys::kFlat);
  CHECK(flat.state.containers.empty());
  CHECK(unflatten(flat.state).find("optim")->find("state") == nullptr);
  rekey_optimizers(flat, OptimKeys::kFqn);
  const Value tree = unflatten(flat.state);
  REQUIRE(tree.find("optim")->find("state") != nullptr);
  CHECK(tree.find("optim")->find("state")->is_dict());
  CHECK(entries(flat) == entries(named));
}

TEST_CASE("groups that were one value, and optimizers at the top, become flattened") {
  Manifest old = small({Value::real(0.5), Value::real(0.25)});
  std::erase_if(old.state.entries, [](const StateEntry& entry) {
    return entry.name.starts_with("optim.param_groups");
  });
  ValueList groups;
  for (int g = 0; g < 2; ++g)
    groups.push_back(Value::dict(
        {{Value::string("lr"), Value::real(g)},
         {Value::string("params"), Value::list({Value::string(fmt::format("layers.{}.w", g))})}}));
  add(old, {key("optim"), key("param_groups")}, Value::list(groups));
  const auto before = content(old);
  rekey_optimizers(old, OptimKeys::kFlat);
  CHECK(content(old) == before);
  CHECK(old.state.find("optim.param_groups.layers.1.w.lr")->value == Value::real(1));

  Manifest top;
  add(top, {key("state"), key("a.w"), key("step")}, Value::integer(3));
  add(top, {key("param_groups"), index_item(0), key("lr")}, Value::real(1));
  add(top, {key("param_groups"), index_item(0), key("params")},
      Value::list({Value::string("a.w")}));
  rekey_optimizers(top, OptimKeys::kFlat);
  REQUIRE(top.state.entries.size() == 2);
  CHECK(top.state.entries[0].path == Path{key("state.a.w.step")});
  CHECK(top.state.entries[1].path == Path{key("param_groups.a.w.lr")});
}

TEST_CASE("groups with equal options are said to become one") {
  Manifest named = small({Value::real(0.5), Value::real(0.5)});
  const std::vector<Note> notes = rekey_optimizers(named, OptimKeys::kFlat);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0].message, Contains("groups 0 and 1 have the same options"));
  rekey_optimizers(named, OptimKeys::kId);
  CHECK(canonical_optim_states(named, find_roles(named.state)).at(0).groups.size() == 1);
}

TEST_CASE("what the flattened form has no place for is refused by name") {
  Manifest empty = small({Value::real(0.5), Value::real(0.25)});
  for (StateEntry& entry : empty.state.entries)
    if (entry.name == "optim.param_groups.1.params") entry.value = Value::list({});
  CHECK(failure(empty).code == Code::kUnsupported);
  CHECK_THAT(failure(empty).message, Contains("group 1 has options and no members"));

  Manifest dotted_leaf = small({Value::real(0.5)});
  add(dotted_leaf, {key("optim"), key("state"), key("layers.0.w"), key("a.b")}, Value::integer(1));
  CHECK_THAT(failure(dotted_leaf).message, Contains("\"a.b\" of \"layers.0.w\" has a dot"));

  Manifest option = small({Value::real(0.5)});
  add(option, {key("optim"), key("param_groups"), index_item(0), key("a.b")}, Value::integer(1));
  CHECK_THAT(failure(option).message, Contains("option \"a.b\" is a name with a dot"));

  Manifest counter = small({Value::real(0.5)});
  add(counter, {key("optim"), key("state"), key("k")}, Value::integer(1));
  CHECK_THAT(failure(counter).message, Contains("\"optim.state.k\" is of no parameter"));
}

}  // namespace optim_flatten_test
