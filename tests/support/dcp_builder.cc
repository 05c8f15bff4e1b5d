#include "tests/support/dcp_builder.h"

#include <tessera/encoding/torch_archive_writer.h>
#include <tessera/storage/checksum.h>

#include <cstring>

namespace tessera::testing {
namespace {

class Builder {
 public:
  explicit Builder(const BuiltMetadata& metadata) : in_(metadata) {}

  Bytes run() {
    begin(in_.root_module.empty() ? in_.module : in_.root_module, in_.root_class);
    out_.string("state_dict_metadata");
    entries();
    out_.string("planner_data");
    if (in_.planner_data) {
      in_.planner_data(out_);
    } else {
      out_.none();
    }
    out_.string("storage_data");
    storage();
    if (in_.storage_meta) {
      out_.string("storage_meta");
      in_.storage_meta(out_);
    }
    if (in_.version) {
      out_.string("version");
      out_.string(*in_.version);
    }
    if (in_.extra) {
      out_.string(in_.extra_name);
      in_.extra(out_);
    }
    end();
    return out_.finish();
  }

 private:
  void begin(const std::string& module, const std::string& name) {
    out_.global(module, name);
    out_.empty_tuple();
    out_.new_object();
    out_.empty_dict();
    out_.mark();
  }
  void end() {
    out_.set_items();
    out_.build();
  }
  void size(const Numbers& numbers) {
    out_.global("torch", "Size");
    out_.mark();
    for (const std::int64_t n : numbers) out_.integer(n);
    out_.tuple();
    out_.tuple_n(1);
    out_.reduce();
  }

  void entries() {
    out_.empty_dict();
    out_.mark();
    for (const BuiltTensor& tensor : in_.tensors) {
      out_.string(tensor.name);
      begin(in_.module, "TensorStorageMetadata");
      out_.string("properties");
      properties(tensor.dtype);
      out_.string("size");
      size(tensor.size);
      out_.string("chunks");
      chunks(tensor);
      end();
    }
    for (const std::string& name : in_.values) {
      out_.string(name);
      out_.global(in_.module, "BytesStorageMetadata");
      out_.empty_tuple();
      out_.new_object();
    }
    out_.set_items();
  }

  void properties(const std::string& dtype) {
    out_.global(in_.properties_module, "TensorProperties");
    out_.empty_tuple();
    out_.new_object();
    out_.mark();
    out_.global("torch", dtype);
    out_.global("torch.serialization", "_get_layout");
    out_.string("torch.strided");
    out_.tuple_n(1);
    out_.reduce();
    out_.boolean(true);
    memory_format();
    out_.boolean(false);
    out_.tuple();
    out_.build();
  }

  void memory_format() {
    if (in_.enum_by_getattr) {
      out_.global("__builtin__", "getattr");
      out_.global(in_.properties_module, in_.enum_name);
      out_.string("TORCH_CONTIGUOUS_FORMAT");
      out_.tuple_n(2);
    } else {
      out_.global(in_.properties_module, in_.enum_name);
      out_.integer(0);
      out_.tuple_n(1);
    }
    out_.reduce();
  }

  void chunks(const BuiltTensor& tensor) {
    out_.empty_list();
    out_.mark();
    for (const auto& [offsets, sizes] : tensor.chunks) {
      begin(in_.module, "ChunkStorageMetadata");
      out_.string("offsets");
      size(offsets);
      out_.string("sizes");
      size(sizes);
      end();
    }
    out_.append_items();
  }

  void storage() {
    out_.empty_dict();
    out_.mark();
    for (const BuiltItem& item : in_.items) {
      begin(in_.module, "MetadataIndex");
      out_.string("fqn");
      out_.string(item.name);
      out_.string("index");
      out_.none();
      if (item.origin) {
        out_.string("offset");
        size(*item.origin);
      }
      end();
      begin(in_.storage_module, "_StorageInfo");
      out_.string("relative_path");
      out_.string(item.file);
      out_.string("offset");
      out_.integer(item.offset);
      out_.string("length");
      out_.integer(item.length);
      if (!item.transforms.empty()) transforms(item.transforms);
      end();
    }
    out_.set_items();
  }

  void transforms(const std::vector<std::string>& names) {
    out_.string("transform_descriptors");
    out_.empty_list();
    out_.mark();
    for (const std::string& name : names) out_.string(name);
    out_.append_items();
  }

  const BuiltMetadata& in_;
  PickleEmitter out_;
};

Bytes render_archive(const TorchArchiveLayout& layout, const Bytes& data) {
  Bytes out;
  for (std::size_t p = 0; p < layout.pieces().size(); ++p) {
    if (layout.pieces()[p].kind == TorchArchiveLayout::Piece::Kind::kStorage) {
      out.insert(out.end(), data.begin(), data.end());
      continue;
    }
    const Bytes part = layout.render(p, [&](std::uint32_t) { return crc32(0, data); });
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace

Bytes build_metadata(const BuiltMetadata& metadata) { return Builder(metadata).run(); }

std::function<void(PickleEmitter&)> storage_meta_with_path(std::string path_module,
                                                           std::string path_class,
                                                           std::vector<std::string> parts) {
  return [=](PickleEmitter& out) {
    out.global("torch.distributed.checkpoint.metadata", "StorageMeta");
    out.empty_tuple();
    out.new_object();
    out.empty_dict();
    out.mark();
    out.string("checkpoint_id");
    out.global(path_module, path_class);
    out.mark();
    for (const std::string& part : parts) out.string(part);
    out.tuple();
    out.reduce();
    out.string("save_id");
    out.string("1234");
    out.string("modules");
    out.empty_list();
    out.set_items();
    out.build();
  };
}

Bytes tensor_item(const Shape& shape, float first) {
  ArchiveWriteTensor tensor;
  tensor.spec = {DType::kFloat32, shape};
  Bytes data(static_cast<std::size_t>(tensor.spec.size_bytes()));
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    store_le(data.data() + 4 * i, first + static_cast<float>(i));
  return render_archive(TorchArchiveLayout(Value::tensor(0), {tensor}, "archive"), data);
}

Bytes value_item(const Value& value) {
  return render_archive(TorchArchiveLayout(value, {}, "archive"), {});
}

}  // namespace tessera::testing
