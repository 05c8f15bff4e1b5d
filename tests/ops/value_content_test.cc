// What objects and values hold is compared: hash, diff, verify --against and convert --verify see
// every difference that PyTorch would see, and no other.
#include <tessera/ops/convert.h>
#include <tessera/ops/diff.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/verify.h>
#include <tessera/storage/memory_file_system.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "lib/state/key_text.h"
#include "tests/support/convert_case.h"
#include "tests/support/note_text.h"
#include "tests/support/rank_archive.h"
#include "tests/support/written_formats.h"

namespace value_content_test {

using namespace tessera;
using namespace tessera::testing;
using How = OpaqueObject::How;
using Kind = Value::Kind;

namespace {

/// torch.save files by a tree and the tensors in it.
class Files {
 public:
  MemoryFileSystem fs;

  void save(const std::string& path, const Value& value, const RankArchive& archive = {}) {
    fs.write_file(path, archive.render(Value::dict({{Value::string("v"), value}})));
  }
  HashReport hash(const std::string& path) {
    OpenedCheckpoint opened = open_checkpoint(fs, path, {});
    opened.locate_all({});
    return hash_checkpoint(opened);
  }
  DiffReport diff(const std::string& a, const std::string& b, const DiffOptions& options = {}) {
    OpenedCheckpoint left = open_checkpoint(fs, a, {}), right = open_checkpoint(fs, b, {});
    return diff_checkpoints(left, right, options);
  }
  VerifyReport against(const std::string& path, const HashReport& report) {
    fs.write_file("/report.json", as_bytes(hash_report(report)));
    VerifyOptions options;
    options.against = "/report.json";
    return verify_checkpoint(fs, path, options);
  }
};

/// All verbs see that /a.pt and /b.pt are not the same; the path inside that diff gives.
std::string place_of_difference(Files& files) {
  const HashReport a = files.hash("/a.pt"), b = files.hash("/b.pt");
  CHECK((a.root != b.root || a.values_root != b.values_root));
  CHECK_FALSE(files.against("/b.pt", a).ok);
  CHECK(files.against("/a.pt", a).ok);
  const DiffReport diff = files.diff("/a.pt", "/b.pt");
  CHECK_FALSE(diff.equal);
  CHECK(files.diff("/a.pt", "/a.pt").equal);
  return diff.values.empty() ? "" : diff.values[0].path;
}

std::string place_of_difference(const Value& a, const Value& b) {
  Files files;
  files.save("/a.pt", a);
  files.save("/b.pt", b);
  return place_of_difference(files);
}

Value tuple(ValueList items) { return Value::list(std::move(items), Kind::kTuple); }

Value object(How how, const std::string& name, ValueList arguments, Value state = {}) {
  OpaqueObject made;
  made.how = how;
  made.module = "my.module";
  made.name = name;
  made.arguments = tuple(std::move(arguments));
  made.has_state = !state.is_none();
  made.state = std::move(state);
  return Value::opaque(std::move(made));
}

/// The result of a conversion that --verify was content with.
ConvertReport converted(Files& files, const std::string& to, const std::string& target,
                        const std::string& source = "/a.pt") {
  ConvertOptions options = convert_options(source, target, std::nullopt, to);
  options.verify = true;
  const ConvertReport report = convert(files.fs, options);
  INFO(to << (report.verify_findings.empty() ? "" : ": " + report.verify_findings[0]));
  CHECK(report.published);
  return report;
}

/// Values that a conversion must keep as they are: in a tuple, so that no format enters them.
std::vector<Value> kept_values() {
  const ValueDict entries = {{text("b"), number(1)}, {text("a"), number(2)}};
  OpaqueObject list;
  list.module = "builtins";
  list.name = "list";
  const double nan = std::bit_cast<double>(std::uint64_t{0xfff8000000000007});
  return {Value::counter(entries),
          Value::default_dict(entries, Value::opaque(list)),
          Value::default_dict(entries, {}),
          Value::ordered_dict(entries, {}),
          Value::real(-0.0),
          Value::real(nan),
          Value::list({number(1)}, Kind::kSet),
          Value::list({number(1)}, Kind::kFrozenSet),
          Value::bytes("x", Kind::kByteArray),
          Value::size({1, 2})};
}

}  // namespace

TEST_CASE("types that compare equal in Python are different values") {
  const Value one = number(1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double other = std::bit_cast<double>(std::bit_cast<std::uint64_t>(nan) + 1);
  const ValueDict entries = {{text("k"), one}};
  const std::vector<std::pair<Value, Value>> pairs = {
      {one, Value::real(1)},
      {one, Value::boolean(true)},
      {Value::real(0.0), Value::real(-0.0)},
      {Value::real(nan), Value::real(other)},
      {Value::list({one}), tuple({one})},
      {Value::list({one}, Kind::kSet), Value::list({one}, Kind::kFrozenSet)},
      {Value::bytes("x"), Value::bytes("x", Kind::kByteArray)},
      {Value::dict(entries), Value::ordered_dict(entries, {})},
      {Value::dict(entries), Value::counter(entries)},
      {Value::dict(entries), Value::default_dict(entries, {})},
      {Value::size({1}), tuple({one})}};
  for (const auto& [a, b] : pairs) {
    INFO(static_cast<int>(a.kind()) << " " << static_cast<int>(b.kind()));
    place_of_difference(a, b);
    CHECK(place_of_difference(tuple({text("x"), a}), tuple({text("x"), b})) == "[1]");
  }
}

TEST_CASE("an empty dict has a kind as others have") {
  const auto with = [](const Value& empty) { return dict({{"n", number(1)}, {"d", empty}}); };
  const Value plain = Value::dict({});
  for (const Value& other :
       {Value::ordered_dict({}, {}), Value::counter({}), Value::default_dict({}, {})})
    CHECK(place_of_difference(with(plain), with(other)) == ".__class__");
  CHECK(place_of_difference(with(Value::counter({})), with(Value::ordered_dict({}, {}))) ==
        ".__class__");
}

TEST_CASE("the top has a kind as others have, and keeps it or loses it by name") {
  const std::vector<ValueDict> contents = {{{text("k"), number(1)}}, {}};
  for (const ValueDict& entries : contents) {
    for (const Value& other : {Value::ordered_dict(entries, {}), Value::counter(entries),
                               Value::default_dict(entries, {})}) {
      INFO(static_cast<int>(other.kind()) << ", " << entries.size() << " entries");
      Files files;
      files.fs.write_file("/a.pt", RankArchive().render(Value::dict(entries)));
      files.fs.write_file("/b.pt", RankArchive().render(other));
      CHECK(place_of_difference(files) == ".__class__");
      if (entries.empty()) continue;
      for (const FormatDriver* driver : written_formats()) {
        const std::string format(driver->id()), result = "/" + format;
        INFO(format);
        ConvertOptions options = convert_options("/b.pt", result, std::nullopt, format);
        if (!status_of(files.fs, options).ok()) continue;  // without a model
        files.fs.remove_tree(result);
        const ConvertReport report = converted(files, format, result, "/b.pt");
        const bool listed = std::ranges::any_of(report.transformations, [](const auto& change) {
          return change.kind == "types" && change.changes.at(0).starts_with("(top): ");
        });
        CHECK(listed == driver->capabilities().loses_dict_kinds);
        CHECK(files.diff("/b.pt", result).equal);
      }
    }
  }
}

TEST_CASE("diff says what few formats record and the verdict leaves out") {
  struct Saved {
    const char* what;
    Value a, b;
    bool parameter;
    const char* note;  // "": none
  };
  const ValueDict entries = {{text("w"), Value::tensor(0)}};
  const Value plain = Value::dict(entries), ordered = Value::ordered_dict(entries, {});
  const Saved pairs[] = {
      {"the same", plain, plain, false, ""},
      {"parameter", plain, plain, true, "in being an nn.Parameter or in requires_grad, which few"},
      {"top", plain, ordered, false, "1 x dict of tensors ((top))"},
      {"below", Value::dict({{text("m"), plain}}), Value::dict({{text("m"), ordered}}), false,
       "1 x dict of tensors (m)"}};
  for (const auto& [what, a, b, parameter, note] : pairs) {
    INFO(what);
    Files files;
    RankArchive of_a, of_b;
    of_a.tensor({2}, {1, 2});
    ArchiveWriteTensor tensor = of_a.written(0);
    tensor.is_parameter = parameter;
    of_b.add(tensor, of_a.data(0));
    files.fs.write_file("/a.pt", of_a.render(a));
    files.fs.write_file("/b.pt", of_b.render(b));
    const DiffReport diff = files.diff("/a.pt", "/b.pt");
    CHECK(diff.equal);
    CHECK(files.hash("/a.pt").root == files.hash("/b.pt").root);
    REQUIRE(diff.notes.size() == (*note ? 1 : 0));
    if (*note) CHECK_THAT(diff.notes[0].message, Catch::Contains(note));
  }
}

TEST_CASE("keys at the top are numbers or text, too") {
  Files files;
  const auto save = [&](const std::string& path, const Value& key) {
    const Value inner = dict({{"x", number(2)}});
    files.fs.write_file(path, RankArchive().render(Value::dict(
                                  {{text("w"), number(1)}, {key, number(5)}, {text("d"), inner}})));
  };
  save("/a.pt", number(1));
  save("/b.pt", text("1"));
  CHECK(place_of_difference(files) == ".keys()");
  for (const char* format : {"torch-save", "torch-rank-files"}) {
    const std::string result = std::string("/") + format;
    converted(files, format, result);
    CHECK(files.diff("/a.pt", result).equal);
  }
}

TEST_CASE("a key is what it is, whatever its text") {
  for (const Value& key :
       {Value::real(1.5), Value(), Value::boolean(true), tuple({number(1), number(2)})}) {
    const std::string spelt = key_text(key);
    for (const bool ordered : {false, true}) {
      for (const bool at_top : {false, true}) {
        INFO(spelt << (ordered ? " in an OrderedDict" : "") << (at_top ? " at the top" : ""));
        Files files;
        const auto save = [&](const std::string& path, const Value& of) {
          ValueDict items{{text("first"), number(4)}, {of, number(5)}, {number(7), number(6)}};
          const Value made =
              ordered ? Value::ordered_dict(std::move(items), {}) : Value::dict(std::move(items));
          at_top ? files.fs.write_file(path, RankArchive().render(made)) : files.save(path, made);
        };
        save("/a.pt", key);
        save("/b.pt", text(spelt));
        CHECK(place_of_difference(files) == ".keys()");
        for (const char* format : {"torch-save", "torch-rank-files", "safetensors"}) {
          INFO(format);
          const std::string result = std::string("/") + format;
          converted(files, format, result);
          CHECK(files.diff("/a.pt", result).equal);
          CHECK_FALSE(files.diff("/b.pt", result).equal);
          CHECK(files.hash("/a.pt").values_root == files.hash(result).values_root);
        }
        converted(files, "torch-dcp", "/dcp");  // it keeps keys as text, and says so
        CHECK(files.diff("/a.pt", "/dcp").equal);
      }
    }
  }
}

TEST_CASE("a format of leaves alone lists the kinds of dicts that it loses") {
  Files files;
  files.save("/a.pt", dict({{"o", Value::ordered_dict({{text("k"), number(1)}}, {})},
                            {"d", dict({{"k", number(1)}})}}));
  const ConvertReport report = converted(files, "torch-dcp", "/dcp");
  REQUIRE(report.transformations.size() == 1);
  CHECK(report.transformations[0].kind == "types");
  CHECK(report.transformations[0].changes == std::vector<std::string>{"v.o: OrderedDict -> dict"});
  CHECK(converted(files, "torch-save", "/again.pt").transformations.empty());
}

TEST_CASE("an object differs where its arguments, state or class do") {
  const auto arguments = [](double lr) {
    return argument_namespace({{"name", text("a")}, {"lr", Value::real(lr)}});
  };
  CHECK(place_of_difference(arguments(1), arguments(2)) == ".state.lr");
  CHECK(place_of_difference(object(How::kReduce, "Color", {number(1)}),
                            object(How::kReduce, "Color", {number(2)})) == ".arguments[0]");
  CHECK(place_of_difference(object(How::kNewObj, "A", {}), object(How::kNewObj, "B", {})).empty());
  CHECK(place_of_difference(object(How::kNewObj, "A", {}, dict({{"x", number(1)}})),
                            object(How::kNewObj, "A", {}, dict({{"y", number(1)}}))) == ".state.x");
}

TEST_CASE("tensors and storages inside objects are compared by content") {
  for (const bool storage : {false, true}) {
    Files files;
    for (const float last : {1.F, 2.F}) {
      RankArchive archive;
      Value inside = archive.tensor({2}, {0, last});
      if (storage) {
        OpaqueObject bare;
        bare.how = How::kPersistentId;
        bare.module = "torch.storage";
        bare.name = "UntypedStorage";
        bare.arguments = tuple({inside, Value::dtype(DType::kFloat32)});
        inside = Value::opaque(std::move(bare));
      }
      files.save(last == 1 ? "/a.pt" : "/b.pt",
                 object(How::kNewObj, "Queue", {}, dict({{"items", Value::list({inside})}})),
                 archive);
    }
    CHECK(place_of_difference(files) ==
          (storage ? ".state.items[0].arguments[0]" : ".state.items[0]"));
    converted(files, "torch-save", "/again.pt");
    CHECK(files.diff("/a.pt", "/again.pt").equal);
    converted(files, "torch-dcp", "/dcp");
    CHECK(files.diff("/a.pt", "/dcp").equal);
    // Two sharded ones are told apart as well.
    converted(files, "torch-dcp", "/other", "/b.pt");
    CHECK_FALSE(files.diff("/dcp", "/other").equal);
    CHECK(files.hash("/dcp").values_root != files.hash("/other").values_root);
    CHECK_FALSE(files.against("/other", files.hash("/dcp")).ok);
  }
}

TEST_CASE("items of a queue and elements of an array are compared") {
  const auto queue = [](std::int64_t last) {
    OpaqueObject made;
    made.how = How::kReduce;
    made.module = "collections";
    made.name = "deque";
    made.arguments = tuple({Value::list({}), number(4)});
    made.items = {number(1), number(last)};
    return Value::opaque(std::move(made));
  };
  CHECK(place_of_difference(queue(2), queue(3)) == "[1]");
  // numpy.zeros(1, [("a", "u1")]): of a type that no JSON has.
  const auto array = [](const char* byte) {
    OpaqueObject type, made, cls;
    type.how = made.how = How::kReduce;
    cls.module = type.module = "numpy";
    cls.name = "ndarray";
    type.name = "dtype";
    type.arguments = tuple({text("V1"), Value::boolean(false), Value::boolean(true)});
    made.module = "numpy.core.multiarray";
    made.name = "_reconstruct";
    made.arguments = tuple({Value::opaque(cls), tuple({number(0)}), Value::bytes("b")});
    made.has_state = true;
    made.state = tuple({number(1), tuple({number(1)}), Value::opaque(type), Value::boolean(false),
                        Value::bytes(byte)});
    return Value::opaque(std::move(made));
  };
  CHECK(place_of_difference(array("x"), array("y")) == ".state[4]");
}

TEST_CASE("equal integers at another scale are other weights") {
  Files files;
  QuantParams quant;
  quant.scheme = "per_tensor_affine";
  for (const double scale : {0.1, 0.2}) {
    quant.scale = scale;
    RankArchive archive;
    ArchiveWriteTensor tensor;
    tensor.spec = {DType::kQInt8, {2}};
    tensor.quant = &quant;
    const Value weight = archive.add(tensor, Bytes(2, std::byte{3}));
    files.save(scale == 0.1 ? "/a.pt" : "/b.pt", weight, archive);
  }
  place_of_difference(files);
  const DiffReport diff = files.diff("/a.pt", "/b.pt");
  REQUIRE(diff.tensors.size() == 1);
  CHECK(diff.tensors[0].what == TensorDiff::What::kQuantizer);
  CHECK(diff.tensors[0].b == "per_tensor_affine, scale 0.2, zero point 0");
  const HashReport hash = files.hash("/a.pt");
  REQUIRE(hash.tensors[0].quantizer);
  CHECK(hash.tensors[0].quantizer->text() ==
        "per_tensor_affine scale=3fb999999999999a zero_point=0");
  CHECK(hash.root != hash.root_v1);
  CHECK(files.hash("/b.pt").root_v1 == hash.root_v1);
  converted(files, "torch-save", "/again.pt");
  CHECK(files.hash("/again.pt").root == hash.root);
}

TEST_CASE("a tolerance lets numbers be equal that compare equal, and nothing else") {
  Files files;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  files.save("/a.pt", tuple({Value::real(0.0), Value::real(nan), number(1)}));
  files.save("/b.pt", tuple({Value::real(-0.0), Value::real(-nan), number(1)}));
  files.save("/c.pt", tuple({Value::real(-0.0), Value::real(-nan), Value::real(1)}));
  DiffOptions options;
  options.abs = 0;
  CHECK_FALSE(files.diff("/a.pt", "/b.pt").equal);
  CHECK(files.diff("/a.pt", "/b.pt", options).equal);
  CHECK_FALSE(files.diff("/a.pt", "/c.pt", options).equal);
}

TEST_CASE("conversions keep the types of values") {
  for (const Value& kept : kept_values()) {
    INFO(static_cast<int>(kept.kind()));
    Files files;
    files.save("/a.pt", tuple({kept}));
    const std::string root = files.hash("/a.pt").values_root;
    for (const std::string to : {"torch-save", "torch-dcp", "safetensors", "hdf5"}) {
      INFO(to);
      const std::string target = "/" + to +
                                 (to == "hdf5"         ? ".h5"
                                  : to == "torch-save" ? ".pt"
                                                       : "");
      converted(files, to, target);
      CHECK(files.hash(target).values_root == root);
      CHECK(files.diff("/a.pt", target).equal);
    }
  }
}

TEST_CASE("dicts of a kind of their own keep it where a format has kinds") {
  Files files;
  OpaqueObject list;
  list.module = "builtins";
  list.name = "list";
  const Value kinds =
      dict({{"count", Value::counter({{text("x"), number(1)}})},
            {"order", Value::ordered_dict({{text("x"), number(1)}}, {})},
            {"made", Value::default_dict({{text("x"), number(1)}}, Value::opaque(list))}});
  files.save("/a.pt", kinds);
  for (const std::string to : {"torch-save", "safetensors"}) {
    const std::string target = "/" + to + ".x";
    converted(files, to, target);
    CHECK(files.hash(target).values_root == files.hash("/a.pt").values_root);
  }
  // Leaves only: nothing to compare.
  converted(files, "torch-dcp", "/dcp");
  CHECK(files.diff("/a.pt", "/dcp").equal);
  CHECK(files.against("/dcp", files.hash("/a.pt")).ok);
}

TEST_CASE("reports of before still verify") {
  Files files;
  files.save("/a.pt", tuple({number(1)}));
  HashReport hash = files.hash("/a.pt");
  CHECK(hash.root == hash.root_v1);
  const auto old_report = [&](const std::string& values_root) {
    std::string text = hash_report(hash.tensors);
    text.insert(1, "\"format\":\"torch-save\",\"values_root\":\"" + values_root + "\",");
    files.fs.write_file("/old.json", as_bytes(text));
    VerifyOptions options;
    options.against = "/old.json";
    return verify_checkpoint(files.fs, "/a.pt", options);
  };
  CHECK(old_report(hash.values_root_v1).ok);
  CHECK(old_report(hash.values_root_v1).findings.empty());
  CHECK_FALSE(old_report(std::string(64, '0')).ok);
}

TEST_CASE("what could not be followed is counted") {
  // A branch of an object that goes deeper than values may be.
  Value deep = number(1);
  for (int i = 0; i < kMaxValueDepth - 2; ++i) deep = Value::list({deep});
  Files files;
  files.save("/a.pt", tuple({object(How::kNewObj, "A", {}, Value::list({deep}))}));
  const HashReport hash = files.hash("/a.pt");
  CHECK(hash.not_compared == 1);
  const DiffReport diff = files.diff("/a.pt", "/a.pt");
  CHECK(diff.equal);
  CHECK(diff.not_compared == 1);
  const VerifyReport verify = files.against("/a.pt", hash);
  CHECK(verify.ok);
  CHECK(verify.not_compared == 1);
  CHECK(std::ranges::count(verify.findings, "warning", note_severity<Note>) == 1);
}

}  // namespace value_content_test
