#pragma once
// What lies inside of the values of a checkpoint, by content: tensors in objects and tuples, and
// the scales of quantized tensors. hash, diff, verify --against and --verify compare values through
// it (encoding/canonical_value.h).
#include <tessera/encoding/canonical_value.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// SHA-256 (hex) by tensor index.
using TensorDigests = std::map<std::uint32_t, std::string>;

/// Digests of the tensors inside values; with `quantizers`, also of the vectors that quantizers are
/// made of. Locates and reads them.
/// Those of `known` are not read again.
TensorDigests inner_digests(OpenedCheckpoint& checkpoint, bool quantizers,
                            const TransferOptions& transfer, TensorDigests known = {});

class ContentDigests {
 public:
  /// Reads the tensors inside. The checkpoint must outlive this and keep its values.
  ContentDigests(OpenedCheckpoint& checkpoint, const TransferOptions& transfer,
                 TensorDigests known = {});
  ContentDigests(const ContentDigests&) = delete;
  ContentDigests& operator=(const ContentDigests&) = delete;

  ValueDigester& digester() { return digester_; }
  const TensorDigests& tensors() const { return tensors_; }
  std::optional<HashedQuantizer> quantizer(const StoredTensor& tensor);
  /// Every value, and every dict of another kind than the plain one that holds values alone, in
  /// stored order.
  std::vector<HashedValue> values();

 private:
  std::string tensor_text(std::uint32_t index);

  const Manifest& manifest_;
  TensorDigests tensors_;
  ValueDigester digester_;
};

/// Dicts of a kind of their own (OrderedDict, defaultdict, Counter), or with keys that are no text,
/// that hold no tensor: as values they have a type. By dotted path; each has None for values, an
/// OrderedDict all its keys, others those that are no text. "" is the top dict, with those of these
/// keys below which no tensor lies.
std::map<std::string, Value> typed_containers(const StateDict& state);

/// What kind of dict one of those is, as Python names it.
std::string dict_words(const Value& dict);

/// "3 values hold objects that could not be followed to the end: these parts were not compared"
std::string not_compared_words(std::uint64_t values);

/// Whether both formats keep the kinds of dicts, so that they can be compared.
bool keep_container_types(std::string_view format_a, std::string_view format_b);
/// The same of the top dict, which is no object where a format has a file for each of its entries.
bool keep_top_kind(std::string_view format_a, std::string_view format_b);
/// typed_containers() with the top as a plain dict.
std::map<std::string, Value> with_plain_top(std::map<std::string, Value> types);

}  // namespace tessera
