// Archives whose pickle contradicts their records, one refusal each; and the legacy container's
// own.
#include <tessera/encoding/pickle_writer.h>

#include <catch2/catch.hpp>

#include "lib/encoding/zip_layout.h"
#include "lib/state/tensor_wrapper.h"
#include "tests/support/archive_gather.h"

namespace torch_archive_refusals_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

using Emit = std::function<void(PickleEmitter&)>;
using Records = std::vector<std::pair<std::string, std::string>>;

/// A zip archive of `records` below "a".
std::string zip_of(const Records& records) {
  ZipLayout layout;
  Bytes out;
  std::vector<std::uint32_t> crcs;
  for (const auto& [name, data] : records) {
    const std::size_t i = layout.add("a/" + name, data.size());
    crcs.push_back(crc32(0, as_bytes(data)));
    layout.append_header(i, out);
    out.insert(out.end(), as_bytes(data).begin(), as_bytes(data).end());
    layout.append_descriptor(i, crcs[i], out);
  }
  layout.append_directory([&](std::size_t i) { return crcs[i]; }, out);
  return std::string(as_text(out));
}

std::string pickle_of(const Emit& emit) {
  PickleEmitter emitter;
  emit(emitter);
  return std::string(as_text(emitter.finish()));
}

void tuple(PickleEmitter& e, const std::vector<std::int64_t>& values) {
  e.mark();
  for (const auto v : values) e.integer(v);
  e.tuple();
}

struct Tensor {
  std::string storage_class = "FloatStorage";
  std::string key = "0";
  std::int64_t storage_numel = 4;
  std::int64_t offset = 0;
  std::vector<std::int64_t> size = {2, 2};
  std::vector<std::int64_t> stride = {2, 1};
  std::string word = "storage";
  std::string module = "torch";
  std::string device = "cpu";
};

void emit_storage(PickleEmitter& e, const Tensor& t) {
  e.mark();
  e.string(t.word);
  e.global(t.module, t.storage_class);
  e.string(t.key);
  e.string(t.device);
  e.integer(t.storage_numel);
  e.tuple();
  e.persistent_id();
}

void hooks(PickleEmitter& e) {
  e.global("collections", "OrderedDict");
  e.empty_tuple();
  e.reduce();
}

void emit_tensor(PickleEmitter& e, const Tensor& t, const Emit& metadata = nullptr) {
  e.global("torch._utils", "_rebuild_tensor_v2");
  e.mark();
  emit_storage(e, t);
  e.integer(t.offset);
  tuple(e, t.size);
  tuple(e, t.stride);
  e.boolean(false);
  hooks(e);
  if (metadata) metadata(e);
  e.tuple();
  e.reduce();
}

/// Opens an archive with this pickle and a 16-byte data/0.
Code open(const Emit& emit, std::string* message, TorchArchive* out = nullptr) {
  const ByteFile file(zip_of({{"data.pkl", pickle_of(emit)}, {"data/0", std::string(16, 'x')}}));
  return code_of(
      [&] {
        TorchArchive archive = open_torch_archive(ByteWindow::whole(file));
        if (out) *out = std::move(archive);
      },
      message);
}

void check_refused(const std::string& name, const Tensor& tensor, const std::string& says,
                   Code code = Code::kCorrupt) {
  INFO(name);
  std::string message;
  CHECK(open([&](PickleEmitter& e) { emit_tensor(e, tensor); }, &message) == code);
  CHECK_THAT(message, Catch::Contains(says));
}

void check_open(const std::string& name, const Tensor& tensor) {
  INFO(name);
  std::string message;
  CHECK(open([&](PickleEmitter& e) { emit_tensor(e, tensor); }, &message) == Code::kOk);
  INFO(message);
}

}  // namespace

TEST_CASE("views stay inside of their storage") {
  check_open("dense", {});
  check_open("last element", {.offset = 3, .size = {1, 1}});
  check_open("scalar", {.offset = 3, .size = {}, .stride = {}});
  check_open("broadcast", {.size = {1000, 4}, .stride = {0, 1}});
  check_open("transposed", {.stride = {1, 2}});
  check_open("empty at the end", {.offset = 4, .size = {0, 7}, .stride = {9, 1}});
  check_refused("one too far", {.offset = 1}, "leaves it");
  check_refused("stride", {.stride = {3, 1}}, "leaves it");
  check_refused("empty past the end", {.offset = 5, .size = {0}, .stride = {1}}, "leaves it");
  check_refused("negative offset", {.offset = -1}, "begins before it");
  check_refused("negative stride", {.offset = 3, .stride = {-1, 1}}, "negative stride");
  check_refused("negative size", {.size = {-2, 2}}, "");
  check_refused("numel overflow", {.size = {INT64_MAX, INT64_MAX}}, "");
  check_refused("reach overflow", {.size = {4, 4}, .stride = {INT64_MAX, INT64_MAX}}, "leaves it");
  check_refused("stride count", {.stride = {1}}, "a different number of strides");
}

TEST_CASE("a storage's record must exist and have exactly the size that the pickle says") {
  check_refused("missing", {.key = "1"}, "record data/1 is missing");
  check_refused("escape", {.key = "../data.pkl"}, "record data/../data.pkl is missing");
  check_refused("short record", {.storage_numel = 5}, "holds 16 bytes, the pickle says 20");
  check_refused("long record", {.storage_numel = 3, .size = {1}, .stride = {1}},
                "holds 16 bytes, the pickle says 12");
  check_refused("negative", {.storage_numel = -4}, "bad size");
  check_refused("overflow", {.storage_numel = INT64_MAX}, "bad size");
  check_refused("no storage", {.word = "module"}, "names no storage");
  check_refused("class", {.storage_class = "StrangeStorage"}, "storage class torch.StrangeStorage",
                Code::kUnsupported);
  check_refused("module", {.module = "evil"}, "storage class evil.FloatStorage",
                Code::kUnsupported);
  check_refused(
      "packed",
      {.storage_class = "QUInt4x2Storage", .storage_numel = 16, .size = {2}, .stride = {1}},
      "packed dtype quint4x2", Code::kUnsupported);
  check_open("cuda class", {.module = "torch.cuda"});
}

TEST_CASE("one storage under two sizes is refused") {
  std::string message;
  CHECK(open(
            [](PickleEmitter& e) {
              e.mark();
              emit_tensor(e, {});
              emit_tensor(e, {.storage_numel = 2, .size = {2}, .stride = {1}});
              e.tuple();
            },
            &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("holds 16 bytes, the pickle says 8"));
}

TEST_CASE("one storage of two types is refused: torch keeps the first") {
  const auto both = [](const Tensor& first, const Tensor& second) {
    std::string message;
    const Code code = open(
        [&](PickleEmitter& e) {
          e.mark();
          emit_tensor(e, first);
          emit_tensor(e, second);
          e.tuple();
        },
        &message);
    if (code != Code::kOk) CHECK_THAT(message, Catch::Contains("two types or places"));
    return code;
  };
  CHECK(both({}, {}) == Code::kOk);
  CHECK(both({}, {.storage_class = "IntStorage"}) == Code::kCorrupt);
  const Tensor bytes{
      .storage_class = "ByteStorage", .storage_numel = 16, .size = {16}, .stride = {1}};
  CHECK(both({}, bytes) == Code::kCorrupt);
  CHECK(both(bytes, {}) == Code::kCorrupt);
}

TEST_CASE("a tensor that is complete takes no state and no items") {
  const auto after = [](const Emit& emit) {
    std::string message;
    const Code code = open(
        [&](PickleEmitter& e) {
          emit_tensor(e, {});
          emit(e);
        },
        &message);
    CHECK_THAT(message, Catch::Contains("on a tensor that is complete"));
    return code;
  };
  CHECK(after([](PickleEmitter& e) {
          e.mark();
          emit_storage(e, {});
          e.integer(0);
          tuple(e, {1});
          tuple(e, {1});
          e.tuple();
          e.build();
        }) == Code::kCorrupt);
  CHECK(after([](PickleEmitter& e) {
          e.empty_dict();
          e.build();
        }) == Code::kCorrupt);
  CHECK(after([](PickleEmitter& e) {
          e.mark();
          e.integer(0);
          e.real(9);
          e.set_items();
        }) == Code::kCorrupt);
  CHECK(after([](PickleEmitter& e) {
          e.mark();
          e.integer(0);
          e.append_items();
        }) == Code::kCorrupt);
}

TEST_CASE("attributes of a tensor that are its content are refused, wherever the tensor goes") {
  const auto with_attribute = [](const char* name, bool in_slots, bool kept) {
    return [=](PickleEmitter& e) {
      if (!kept) e.empty_dict();
      if (!kept) e.mark();
      if (!kept) e.string("w");
      e.global("torch._utils", "_rebuild_parameter_with_state");
      e.mark();
      emit_tensor(e, {});
      e.boolean(true);
      hooks(e);
      if (in_slots) e.none();
      e.empty_dict();
      e.mark();
      e.string(name);
      emit_tensor(e, {.offset = 1, .size = {1}, .stride = {1}});
      e.set_items();
      if (in_slots) e.tuple_n(2);
      e.tuple();
      e.reduce();
      if (kept) return;
      e.string("w");  // the tensor goes, torch has made it
      e.integer(0);
      e.set_items();
    };
  };
  std::string message;
  for (const char* name : {"data", "real", "imag", "requires_grad", "__class__"}) {
    INFO(name);
    CHECK(open(with_attribute(name, false, true), &message) == Code::kCorrupt);
    CHECK_THAT(message, Catch::Contains("which is its content"));
    CHECK(open(with_attribute(name, true, true), &message) == Code::kCorrupt);
    CHECK(open(with_attribute(name, true, false), &message) == Code::kCorrupt);
  }
  CHECK(open(with_attribute("note", false, true), &message) == Code::kOk);
  CHECK(open(with_attribute("note", true, false), &message) == Code::kOk);
}

TEST_CASE("zero points say which scheme a quantizer per channel has, as torch has it") {
  const auto open_with = [](const char* scheme, const char* zero_points) {
    const Tensor bytes{
        .storage_class = "QInt8Storage", .storage_numel = 16, .size = {2}, .stride = {1}};
    const std::string pickle = pickle_of([&](PickleEmitter& e) {
      e.global("torch._utils", "_rebuild_qtensor");
      e.mark();
      emit_storage(e, bytes);
      e.integer(0);
      tuple(e, {2});
      tuple(e, {1});
      e.mark();
      e.global("torch", scheme);
      emit_tensor(e, {.storage_class = "DoubleStorage",
                      .key = "1",
                      .storage_numel = 2,
                      .size = {2},
                      .stride = {1}});
      emit_tensor(e, {.storage_class = zero_points,
                      .key = "2",
                      .storage_numel = 2,
                      .size = {2},
                      .stride = {1}});
      e.integer(0);
      e.tuple();
      e.boolean(false);
      hooks(e);
      e.tuple();
      e.reduce();
    });
    const std::string data(16, '\0');
    const ByteFile file(
        zip_of({{"data.pkl", pickle}, {"data/0", data}, {"data/1", data}, {"data/2", data}}));
    return open_torch_archive(ByteWindow::whole(file)).quant.at(0).scheme;
  };
  CHECK(open_with("per_channel_affine", "LongStorage") == "per_channel_affine");
  // torch.save writes the first name for both (torch/_tensor.py, PyTorch 2.13).
  CHECK(open_with("per_channel_affine", "DoubleStorage") == "per_channel_affine_float_qparams");
  CHECK(open_with("per_channel_affine_float_qparams", "DoubleStorage") ==
        "per_channel_affine_float_qparams");
  CHECK(open_with("per_channel_affine_float_qparams", "LongStorage") == "per_channel_affine");
}

TEST_CASE("indices of a sparse tensor are integers") {
  const auto open_with = [](const char* indices) {
    return [=](PickleEmitter& e) {
      e.global("torch._utils", "_rebuild_sparse_tensor");
      e.global("torch.serialization", "_get_layout");
      e.string("torch.sparse_coo");
      e.tuple_n(1);
      e.reduce();
      emit_tensor(e,
                  {.storage_class = indices, .storage_numel = 2, .size = {1, 2}, .stride = {2, 1}});
      emit_tensor(e, {.storage_class = indices, .storage_numel = 2, .size = {2}, .stride = {1}});
      tuple(e, {9});
      e.tuple_n(3);
      e.tuple_n(2);
      e.reduce();
    };
  };
  std::string message;
  CHECK(open(open_with("LongStorage"), &message) == Code::kOk);
  CHECK(open(open_with("DoubleStorage"), &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("indices of a sparse tensor are of type float64"));
}

TEST_CASE("tensors made of numbers are no values") {
  std::string message;
  for (const char* name : {"Tensor", "FloatTensor"}) {
    CHECK(open(
              [&](PickleEmitter& e) {
                e.empty_dict();
                e.mark();
                e.string("w");
                e.global("torch", name);
                e.empty_list();
                e.mark();
                e.integer(1);
                e.append_items();
                e.tuple_n(1);
                e.reduce();
                e.set_items();
              },
              &message) == Code::kUnsupported);
    CHECK_THAT(message, Catch::Contains("makes of numbers or other tensors"));
  }
}

TEST_CASE("storages on the meta device have no data for torch") {
  std::string message;
  CHECK(open([](PickleEmitter& e) { emit_tensor(e, {.device = "meta"}); }, &message) ==
        Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("meta device"));
}

TEST_CASE("bytes of an untyped storage are not swapped, so that big-endian ones are refused") {
  const auto open_as = [](const char* order, const char* dtype) {
    const std::string pickle = pickle_of([&](PickleEmitter& e) {
      e.global("torch._utils", "_rebuild_tensor_v3");
      e.mark();
      emit_storage(e, {.storage_class = "UntypedStorage", .storage_numel = 16});
      e.integer(0);
      tuple(e, {2});
      tuple(e, {1});
      e.boolean(false);
      hooks(e);
      e.global("torch", dtype);
      e.tuple();
      e.reduce();
    });
    const ByteFile file(
        zip_of({{"data.pkl", pickle}, {"byteorder", order}, {"data/0", std::string(16, 'x')}}));
    return code_of([&] { open_torch_archive(ByteWindow::whole(file)); });
  };
  CHECK(open_as("little", "uint16") == Code::kOk);
  CHECK(open_as("big", "uint16") == Code::kUnsupported);
  CHECK(open_as("big", "float8_e5m2") == Code::kOk);
}

TEST_CASE("records are found as torch finds them, whatever the case of their names") {
  const std::string pickle = pickle_of([](PickleEmitter& e) { e.integer(1); });
  const ByteFile shouted(zip_of({{"DATA.PKL", pickle}, {"ByteOrder", "big"}}));
  CHECK(open_torch_archive(ByteWindow::whole(shouted)).big_endian);
  const ByteFile twice(zip_of({{"data.pkl", pickle}, {"DATA.pkl", pickle}}));
  std::string message;
  CHECK(code_of([&] { open_torch_archive(ByteWindow::whole(twice)); }, &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("but for capital letters"));
}

TEST_CASE("flags, parameters, subclasses and meta tensors") {
  TorchArchive archive;
  std::string message;
  const auto root = [&](const Emit& emit) {
    INFO(message);
    REQUIRE(open(emit, &message, &archive) == Code::kOk);
    return archive.tensors.at(archive.root.tensor_index());
  };
  const auto flag = [](const char* key) {
    return [key](PickleEmitter& e) {
      e.empty_dict();
      e.mark();
      e.string(key);
      e.boolean(true);
      e.set_items();
    };
  };
  const Tensor complex{
      .storage_class = "ComplexFloatStorage", .storage_numel = 2, .size = {2}, .stride = {1}};
  CHECK(root([&](PickleEmitter& e) { emit_tensor(e, complex, flag("conj")); }).flags ==
        Source::kConj);
  CHECK(root([&](PickleEmitter& e) { emit_tensor(e, {}, flag("neg")); }).flags == Source::kNeg);
  CHECK(open([&](PickleEmitter& e) { emit_tensor(e, {}, flag("odd")); }, &message) ==
        Code::kUnsupported);
  const auto unset = [](PickleEmitter& e) {
    e.empty_dict();
    e.mark();
    e.string("neg");
    e.boolean(false);
    e.set_items();
  };
  CHECK(open([&](PickleEmitter& e) { emit_tensor(e, {}, unset); }, &message) == Code::kCorrupt);

  const auto parameter = root([](PickleEmitter& e) {
    e.global("torch._utils", "_rebuild_parameter_with_state");
    e.mark();
    emit_tensor(e, {});
    e.boolean(true);
    hooks(e);
    e.empty_dict();
    e.tuple();
    e.reduce();
  });
  CHECK(parameter.is_parameter);
  CHECK(parameter.requires_grad);

  const auto meta = root([](PickleEmitter& e) {
    e.global("torch._utils", "_rebuild_meta_tensor_no_storage");
    e.mark();
    e.global("torch", "float32");
    tuple(e, {1000000, 1000000});
    tuple(e, {1000000, 1});
    e.boolean(false);
    e.tuple();
    e.reduce();
  });
  CHECK(meta.layout == ArchiveTensor::Layout::kMeta);

  const auto subclass = [](const char* module, const char* name) {
    return [=](PickleEmitter& e) {
      e.global("torch._tensor", "_rebuild_from_type_v2");
      e.mark();
      e.global("torch._utils", "_rebuild_tensor_v2");
      e.global(module, name);
      e.mark();
      emit_storage(e, {});
      e.integer(0);
      tuple(e, {2, 2});
      tuple(e, {2, 1});
      e.boolean(false);
      hooks(e);
      e.tuple();
      e.empty_dict();
      e.tuple();
      e.reduce();
    };
  };
  CHECK(root(subclass("torch", "Tensor")).shape == Shape{2, 2});
  CHECK(archive.notes.empty());
  CHECK(root(subclass("my", "Tensor")).shape == Shape{2, 2});
  CHECK(archive.notes.size() == 1);
}

namespace {

/// A subclass of [2,2] float32 that wraps `attributes`.
Emit wrapper(const std::string& name, const Emit& attributes,
             const std::vector<std::int64_t>& size = {2, 2}) {
  return [=](PickleEmitter& e) {
    e.global("torch._tensor", "_rebuild_from_type_v2");
    e.mark();
    e.global("torch._utils", "_rebuild_wrapper_subclass");
    e.global("my", name);
    e.mark();
    e.global("my", name);
    e.global("torch", "float32");
    tuple(e, size);
    tuple(e, {2, 1});
    e.tuple();
    e.empty_dict();
    e.mark();
    attributes(e);
    e.set_items();
    e.tuple();
    e.reduce();
  };
}

void emit_attribute(PickleEmitter& e, const std::string& name, const Emit& value) {
  e.string(name);
  value(e);
}

}  // namespace

TEST_CASE("a wrapper around one tensor of its own shape is that tensor, others stay objects") {
  const Emit inside = [](PickleEmitter& e) { emit_tensor(e, {}); };
  const Emit config = [](PickleEmitter& e) {
    e.global("my", "Config");
    e.empty_tuple();
    e.new_object();
  };
  TorchArchive archive;
  const auto read = [&](const Emit& emit) {
    std::string message;
    const auto in_list = [&](PickleEmitter& e) {
      e.empty_list();
      e.mark();
      emit(e);
      e.append_items();
    };
    CHECK(open(in_list, &message, &archive) == Code::kOk);
    INFO(message);
    return archive.root.as_list().at(0);
  };
  const auto one = [&](PickleEmitter& e) {
    emit_attribute(e, "_config", config);
    emit_attribute(e, "_tensor", inside);
  };
  const Value gathered = read(wrapper("Gathered", one));
  REQUIRE(gathered.is_tensor());
  CHECK(archive.tensors[gathered.tensor_index()].shape == Shape{2, 2});
  REQUIRE(archive.notes.size() == 1);
  CHECK_THAT(archive.notes[0].message, Catch::Contains("my.Gathered"));
  CHECK_FALSE(read(wrapper("DTensor", one)).is_tensor());
  CHECK_FALSE(read(wrapper("Gathered", one, {4, 1})).is_tensor());
  const Value two = read(wrapper("Two", [&](PickleEmitter& e) {
    emit_attribute(e, "codes", inside);
    emit_attribute(e, "scale", inside);
  }));
  CHECK(wrapper_class(two) == "my.Two");
  CHECK(wrapper_parts(two).size() == 2);
  CHECK(wrapper_spec(two) == TensorSpec{DType::kFloat32, Shape{2, 2}});
  const Value nested = read(wrapper("Nested", [&](PickleEmitter& e) {
    emit_attribute(e, "codes", inside);
    emit_attribute(e, "more", [&](PickleEmitter& deep) {
      deep.empty_list();
      deep.mark();
      inside(deep);
      deep.append_items();
    });
  }));
  CHECK(wrapper_class(nested) == "my.Nested");
  CHECK(wrapper_parts(nested).size() == 1);
}

TEST_CASE("bare storages, nested archives and unknown roots are named") {
  std::string message;
  CHECK(open([](PickleEmitter& e) { emit_storage(e, {}); }, &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("torch.storage.UntypedStorage"));
  CHECK(open(
            [](PickleEmitter& e) {
              e.global("torch.storage", "_load_from_bytes");
              e.bytes("x");
              e.tuple_n(1);
              e.reduce();
            },
            &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("_load_from_bytes"));
  CHECK(open(
            [](PickleEmitter& e) {
              e.global("my.module", "Net");
              e.empty_tuple();
              e.new_object();
            },
            &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("my.module.Net"));
}

TEST_CASE("records around the pickle") {
  const std::string pickle = pickle_of([](PickleEmitter& e) { e.integer(1); });
  const auto open_records = [&](Records records, std::string* message) {
    const ByteFile file(zip_of(records));
    return code_of([&] { open_torch_archive(ByteWindow::whole(file)); }, message);
  };
  std::string message;
  CHECK(open_records({{"data.pkl", pickle}, {"version", "3\n"}, {"byteorder", "little"}},
                     &message) == Code::kOk);
  CHECK(open_records({{"data.pkl", pickle}, {"version", "10"}}, &message) == Code::kOk);
  CHECK(open_records({{"data.pkl", pickle}, {"version", "11"}}, &message) == Code::kUnsupported);
  CHECK(open_records({{"data.pkl", pickle}, {"version", "0"}}, &message) == Code::kUnsupported);
  CHECK(open_records({{"data.pkl", pickle}, {"byteorder", "middle"}}, &message) == Code::kCorrupt);
  CHECK(open_records({{"data.pkl", pickle}, {"byteorder", std::string(99, 'x')}}, &message) ==
        Code::kCorrupt);
  CHECK(open_records({{"version", "3\n"}, {"byteorder", "little"}}, &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("without data.pkl"));
  // A healthy archive of another kind is called by it, and not damaged.
  CHECK(open_records({{"other", "x"}}, &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("a zip archive of other files (\"a/other\")"));
  CHECK(open_records({{"w.npy", "x"}, {"b.npy", "y"}}, &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("NumPy archive"));
  CHECK(open_records({{".data/extern_modules", "x"}, {"m.py", "y"}}, &message) ==
        Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("torch.package"));
  CHECK(open_records({{"archive_format", "pt2"}, {"models/a.json", "{}"}}, &message) ==
        Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("torch.export"));
  // An archive of archives, whose directories the outer one's end is near to.
  const std::string inner = zip_of({{"data.pkl", pickle}, {"data/0", "x"}});
  CHECK(open_records({{"policy.pth", inner}, {"_stable_baselines3_version", "2"}}, &message) ==
        Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("Stable-Baselines3"));
  // What has torch's records is torch's, and damaged where its pickle is gone.
  CHECK(open_records({{"data/0", "x"}, {"version", "3\n"}}, &message) == Code::kCorrupt);
  CHECK(open_records({{"constants.pkl", "x"}, {"data.pkl", pickle}}, &message) ==
        Code::kUnsupported);
  const ByteFile big(zip_of({{"data.pkl", pickle}, {"byteorder", "big"}}));
  CHECK(open_torch_archive(ByteWindow::whole(big)).big_endian);
}

TEST_CASE("files that are no torch archive say so") {
  const auto open_bytes = [](std::string bytes, std::string* message) {
    const ByteFile file(std::move(bytes));
    CHECK_FALSE(looks_like_torch_archive(ByteWindow::whole(file)));
    return code_of([&] { open_torch_archive(ByteWindow::whole(file)); }, message);
  };
  std::string message;
  CHECK(open_bytes("", &message) == Code::kCorrupt);
  CHECK(open_bytes("x", &message) == Code::kCorrupt);
  CHECK_THAT(message, Catch::Contains("neither"));
  CHECK(open_bytes("PYTORCH1 and more", &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("PYTORCH1"));
  CHECK(open_bytes(std::string(257, 'x') + "ustar  ", &message) == Code::kUnsupported);
  CHECK_THAT(message, Catch::Contains("tar archive"));
  CHECK(open_bytes("junk" + zip_of({{"data.pkl", "N."}}), &message) == Code::kCorrupt);
}

namespace {

struct Legacy {
  std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s;
  std::string version = "\x80\x02M\xe9\x03."s;
  std::string system = "\x80\x02}."s;
  std::int64_t view_offset = 0;
  std::int64_t view_size = -1;  // none
  bool attribute = false;       // of the tensor: storage "99", which nothing is made of
  std::vector<std::string> keys = {"77"};
  std::int64_t count = 4;
  std::string data = "0123456789abcdef";

  std::string bytes() const {
    const std::string object = pickle_of([&](PickleEmitter& e) {
      e.global("torch._utils", "_rebuild_tensor_v2");
      e.mark();
      e.mark();
      for (const char* word : {"storage"}) e.string(word);
      e.global("torch", "FloatStorage");
      e.string("77");
      e.string("cpu");
      e.integer(4);
      if (view_size < 0) {
        e.none();
      } else {
        e.mark();
        e.string("78");
        e.integer(view_offset);
        e.integer(view_size);
        e.tuple();
      }
      e.tuple();
      e.persistent_id();
      e.integer(1);
      tuple(e, {1});
      tuple(e, {1});
      e.boolean(false);
      if (attribute) {
        emit_storage(e, {.key = "99", .storage_numel = 1});
      } else {
        hooks(e);
      }
      e.tuple();
      e.reduce();
    });
    const std::string key_list = pickle_of([&](PickleEmitter& e) {
      e.empty_list();
      e.mark();
      for (const auto& key : keys) e.string(key);
      e.append_items();
    });
    std::string header(8, '\0');
    store_le(reinterpret_cast<std::byte*>(header.data()), count);
    return magic + version + system + object + key_list + header + data;
  }
};

Code open_legacy(const Legacy& legacy, std::string* message, std::string* element = nullptr) {
  const ByteFile file(legacy.bytes());
  const ByteWindow window = ByteWindow::whole(file);
  return code_of(
      [&] {
        const TorchArchive archive = open_torch_archive(window);
        if (element) *element = as_text(gather(window, archive, archive.root.tensor_index()));
      },
      message);
}

void check_legacy_refused(const std::string& name, const Legacy& legacy, const std::string& says,
                          Code code = Code::kCorrupt) {
  INFO(name);
  std::string message;
  CHECK(open_legacy(legacy, &message) == code);
  CHECK_THAT(message, Catch::Contains(says));
}

}  // namespace

TEST_CASE("the pickle of an archive is searched for a text, but that of no legacy stream") {
  const auto mentions = [](std::string bytes, std::string_view text) {
    const ByteFile file(std::move(bytes));
    return may_mention(ByteWindow::whole(file), text);
  };
  const std::string archive =
      zip_of({{"data.pkl", "\x80\x02X\x04" + "\0\0\0name."s}, {"x", "other"}});
  CHECK(mentions(archive, "name"));
  CHECK_FALSE(mentions(archive, "other"));
  const std::string legacy = Legacy{}.bytes();
  CHECK(mentions(legacy, "other"));
  std::string damaged = archive;
  damaged[damaged.find("name.")] ^= 1;
  CHECK(code_of([&] { mentions(damaged, "name"); }) == Code::kCorrupt);
}

TEST_CASE("legacy streams: storages and views of storages") {
  std::string message;
  std::string element;
  CHECK(open_legacy({}, &message, &element) == Code::kOk);
  CHECK(element == "4567");
  CHECK(open_legacy({.view_offset = 1, .view_size = 2}, &message, &element) == Code::kOk);
  CHECK(element == "89ab");
}

TEST_CASE("legacy streams may hold storages that nothing of the state is made of") {
  std::string message;
  std::string element;
  const std::string header = "\x01\0\0\0\0\0\0\0"s;
  const std::string data = "0123456789abcdef" + header + "wxyz";
  CHECK(open_legacy({.attribute = true, .keys = {"77", "99"}, .data = data}, &message, &element) ==
        Code::kOk);
  CHECK(element == "4567");
  check_legacy_refused("not listed", {.attribute = true}, "storage \"99\" is missing");
  check_legacy_refused("another size",
                       {.attribute = true,
                        .keys = {"77", "99"},
                        .data = "0123456789abcdef\x02" + header.substr(1) + "wxyz1234"},
                       "holds 2 elements, the pickle says 1");
}

TEST_CASE("legacy streams that contradict themselves are refused") {
  check_legacy_refused("version", {.version = "\x80\x02M\xe8\x03."s}, "version other than 1001",
                       Code::kUnsupported);
  check_legacy_refused("count", {.count = 5}, "holds 5 elements, the pickle says 4");
  check_legacy_refused("negative count", {.count = -1}, "the pickle says 4");
  check_legacy_refused("cut data", {.data = "0123"}, "leaves the file");
  check_legacy_refused("no data", {.data = ""}, "leaves the file");
  check_legacy_refused("trailing data", {.data = std::string(17, 'x')}, "1 bytes after the last");
  check_legacy_refused("unknown key", {.keys = {"78"}}, "unknown or twice");
  check_legacy_refused("key twice", {.keys = {"77", "77"}}, "unknown or twice");
  check_legacy_refused("missing key", {.keys = {}}, "storage \"77\" is missing");
  check_legacy_refused("view past the storage", {.view_offset = 3, .view_size = 2},
                       "a view leaves");
  check_legacy_refused("negative view", {.view_offset = -1, .view_size = 2}, "a view leaves");
  check_legacy_refused("tensor past its view", {.view_offset = 3, .view_size = 1}, "leaves it");
}

TEST_CASE("every truncation of a legacy stream is refused") {
  const std::string whole = Legacy{}.bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const ByteFile file(whole.substr(0, length));
    CHECK(code_of([&] { open_torch_archive(ByteWindow::whole(file)); }) == Code::kCorrupt);
  }
}

TEST_CASE("a legacy object larger than the first block is read on") {
  Legacy legacy;
  // A long system record in front: the object's pickle begins past one block and is found all the
  // same.
  legacy.system = pickle_of([](PickleEmitter& e) { e.string(std::string(700'000, 'x')); });
  std::string message;
  std::string element;
  CHECK(open_legacy(legacy, &message, &element) == Code::kOk);
  CHECK(element == "4567");
}

}  // namespace torch_archive_refusals_test
