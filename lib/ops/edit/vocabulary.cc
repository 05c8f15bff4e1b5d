#include "lib/ops/edit/vocabulary.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/reshard/tensor_reader.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "lib/base/append.h"
#include "lib/ops/edit/quant_guard.h"
#include "lib/state/tensor_bytes.h"

namespace tessera {
namespace {

constexpr std::int64_t kComparedBytes = std::int64_t{1} << 20;

/// A bias beside a vocabulary matrix has an element for each of its rows: it goes with it.
void add_biases(const std::map<std::string, Shape>& shapes, std::set<std::string>& names) {
  constexpr std::string_view kEnd = "weight";
  const std::vector<std::string> weights(names.begin(), names.end());
  for (const std::string& name : weights) {
    const auto weight = shapes.find(name);
    if (weight == shapes.end() || weight->second.rank() != 2 || !name.ends_with(kEnd)) continue;
    const auto bias = shapes.find(name.substr(0, name.size() - kEnd.size()) + "bias");
    if (bias != shapes.end() && bias->second == Shape{weight->second[0]}) names.insert(bias->first);
  }
}

std::vector<std::string> chosen(const std::map<std::string, Shape>& shapes,
                                const std::vector<std::string>& globs,
                                const std::vector<std::string>& declared) {
  std::set<std::string> names(declared.begin(), declared.end());
  if (globs.empty() && names.empty()) {
    for (std::string& name : known_vocabulary(shapes)) names.insert(std::move(name));
    if (names.empty()) {
      fail(Code::kInvalidArgument, "--vocab-size: no parameter is known to count the vocabulary",
           "name them: --vocab-tensor GLOB");
    }
  }
  globs.empty() ? add_biases(shapes, names) : names.clear();
  for (const std::string& glob : globs) {
    bool used = false;
    for (const auto& [fqn, shape] : shapes)
      if (glob_match(glob, fqn)) used = names.insert(fqn).second || used || names.contains(fqn);
    if (used) continue;
    std::vector<std::string_view> known;
    for (const auto& [fqn, shape] : shapes) known.push_back(fqn);
    const std::string near = nearest(glob, known);
    fail(Code::kInvalidArgument,
         fmt::format("--vocab-tensor \"{}\" matches no parameter", printable(glob)),
         near.empty() ? "ckpt-inspect ls shows the names"
                      : fmt::format("did you mean \"{}\"?", near));
  }
  return {names.begin(), names.end()};
}

/// Rows [begin, end) that hold something else than zeros.
std::int64_t rows_with_values(const TensorReader& reader, const StoredTensor& tensor,
                              std::uint32_t index, std::int64_t begin, std::int64_t end) {
  const std::int64_t row = tensor.spec.shape.inner_numel(0);
  const std::int64_t es = element_bytes(tensor.spec.dtype);
  std::set<std::int64_t> rows;
  const std::int64_t step = std::max<std::int64_t>(1, kComparedBytes / es);
  Bytes block;
  TensorReader::Reading reading(reader, {&index, 1});
  for (std::int64_t at = begin * row; at < end * row; at += step) {
    const std::int64_t stop = std::min(end * row, at + step);
    block.resize(static_cast<std::size_t>((stop - at) * es));
    reading.read(index, at, stop, block);
    for (std::int64_t i = 0; i < stop - at; ++i) {
      const auto first = block.begin() + static_cast<std::ptrdiff_t>(i * es);
      if (std::any_of(first, first + static_cast<std::ptrdiff_t>(es),
                      [](std::byte b) { return b != std::byte{0}; }))
        rows.insert((at + i) / row);
    }
  }
  return static_cast<std::int64_t>(rows.size());
}

/// The new shape, in elements and in bytes of any type.
Shape checked_shape(const std::string& fqn, const std::vector<std::int64_t>& extents) {
  try {
    const Shape shape = Shape::checked(extents);
    const TensorSpec widest{DType::kComplex128, shape};
    widest.size_bytes();  // throws on overflow
    return shape;
  } catch (const Error&) {
    fail(Code::kInvalidArgument,
         fmt::format("--vocab-size {}: \"{}\" would be larger than a tensor can be", extents[0],
                     printable(fqn)));
  }
}

/// Weights that are the same elements under another name, and keep their rows.
void report_twins(const Manifest& manifest, const std::vector<std::string>& names,
                  std::vector<Note>& notes) {
  const Roles roles = find_roles(manifest.state);
  std::map<TensorPlace, std::string> resized;
  const auto place = [&](std::size_t i) -> std::optional<TensorPlace> {
    const Value& value = manifest.state.entries[i].value;
    if (roles.entries[i].role != Role::kModel || !value.is_tensor()) return std::nullopt;
    return place_of(manifest, manifest.tensors[value.tensor_index()]);
  };
  const auto chosen = [&](std::size_t i) {
    return std::find(names.begin(), names.end(), roles.entries[i].fqn) != names.end();
  };
  for (std::size_t i = 0; i < roles.entries.size(); ++i)
    if (const auto at = place(i); at && chosen(i)) resized.emplace(*at, roles.entries[i].fqn);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const auto at = place(i);
    if (!at || chosen(i) || !resized.contains(*at)) continue;
    notes.push_back({Finding::kVocabulary, Severity::kWarning,
                     fmt::format("tied to \"{}\", and keeps its rows: --vocab-tensor does not "
                                 "match it",
                                 printable(resized.at(*at))),
                     "", manifest.state.entries[i].name});
  }
}

/// "0.weight" of "student.0.weight".
std::string_view below_first_key(std::string_view name) {
  const std::size_t dot = name.find('.');
  return dot == name.npos ? std::string_view() : name.substr(dot + 1);
}

/// Tensors in the shape of a weight that is resized: outside of the model copies of it without its
/// name (a list of averaged weights), or something else of that shape; in it those of its name below
/// another key (a teacher's beside a student's).
void report_unnamed_copies(const Manifest& manifest, const std::vector<ParameterEdit>& edits,
                           std::vector<Note>& notes) {
  constexpr std::size_t kMostReported = 20;
  const Roles roles = find_roles(manifest.state);
  std::size_t named = 0;
  for (std::size_t i = 0; i < roles.entries.size() && named < kMostReported; ++i) {
    const StateEntry& entry = manifest.state.entries[i];
    const EntryRole& role = roles.entries[i];
    const bool in_model = role.role == Role::kModel;
    if ((role.role != Role::kOther || !role.fqn.empty()) && !in_model) continue;
    if (!entry.value.is_tensor()) continue;
    const auto is_resized = [&](const ParameterEdit& edit) { return edit.olds[0].fqn == role.fqn; };
    if (in_model && std::ranges::any_of(edits, is_resized)) continue;
    const Shape& shape = manifest.tensors[entry.value.tensor_index()].spec.shape;
    for (const ParameterEdit& edit : edits) {
      const std::string_view below = below_first_key(edit.olds[0].fqn);
      if (shape != edit.olds[0].shape) continue;
      if (in_model && (below.empty() || below_first_key(role.fqn) != below)) continue;
      notes.push_back({Finding::kVocabulary, Severity::kWarning,
                       fmt::format("has the shape of \"{}\" and keeps its rows: {}",
                                   printable(edit.olds[0].fqn),
                                   in_model ? "--vocab-tensor does not match it"
                                            : "nothing says that it is a copy of it"),
                       "", entry.name});
      ++named;
      break;
    }
  }
}

ParameterEdit resized(const std::string& fqn, const Shape& shape, std::int64_t rows) {
  ParameterEdit edit;
  edit.olds.push_back({fqn, shape});
  std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[0] = rows;
  const Shape fresh = checked_shape(fqn, extents);
  TensorPiece kept;
  kept.source = 0;
  kept.box = Box::whole(shape);
  kept.box.shape[0] = std::min(rows, shape[0]);
  NewParameter made{fqn, fresh, {kept}};
  if (rows > shape[0]) {
    TensorPiece zeros;
    zeros.box = Box::whole(shape);
    zeros.box.shape[0] = rows - shape[0];
    zeros.origin.assign(static_cast<std::size_t>(shape.rank()), 0);
    zeros.origin[0] = shape[0];
    made.pieces.push_back(zeros);
  }
  edit.made.push_back(std::move(made));
  return edit;
}

}  // namespace

SameTensors same_elements(const OpenedCheckpoint& checkpoint, const TransferOptions& transfer) {
  TransferOptions quiet = transfer;
  quiet.progress = nullptr;
  return [&checkpoint, quiet](std::uint32_t a, std::uint32_t b) {
    const Manifest& manifest = checkpoint.manifest;
    if (manifest.tensors[a].spec != manifest.tensors[b].spec) return false;
    const TensorReader reader(manifest, *checkpoint.directory, quiet);
    const auto bytes = [&](std::uint32_t index) {
      const TensorSpec& spec = manifest.tensors[index].spec;
      Bytes out(static_cast<std::size_t>(spec.size_bytes()));
      reader.read(index, 0, spec.shape.numel(), out);
      return out;
    };
    return bytes(a) == bytes(b);
  };
}

void apply_vocabulary(OpenedCheckpoint& checkpoint, const Transformations& asked,
                      const std::vector<std::string>& declared, const TransferOptions& transfer,
                      TransformOutcome& out) {
  Manifest& manifest = checkpoint.manifest;
  const std::int64_t rows = *asked.vocab_size;
  const std::map<std::string, Shape> shapes = parameter_shapes(manifest);
  AppliedTransformation applied{"vocabulary", fmt::format("{} rows", rows), 0, {}};
  std::vector<ParameterEdit> edits;
  std::set<std::string> cut;
  const std::vector<std::string> names = chosen(shapes, asked.vocab_tensors, declared);
  report_twins(manifest, names, out.notes);
  for (const std::string& fqn : names) {
    const auto found = shapes.find(fqn);
    if (found == shapes.end()) continue;  // declared, and left out since
    const Shape& shape = found->second;
    if (shape.rank() == 0) {
      fail(Code::kInvalidArgument, fmt::format("\"{}\" is a scalar: it has no rows", fqn));
    }
    if (shape[0] == rows) {
      out.notes.push_back({Finding::kVocabulary, Severity::kInfo,
                           fmt::format("has {} rows already", rows), "", fqn});
      continue;
    }
    if (shape[0] > rows) cut.insert(fqn);
    applied.changes.push_back(fmt::format("{}: {} -> {} rows", fqn, shape[0], rows));
    edits.push_back(resized(fqn, shape, rows));
  }
  std::set<std::string> changed;
  for (const ParameterEdit& edit : edits) changed.insert(edit.olds[0].fqn);
  refuse_codes_alone(manifest, changed, changed, "--vocab-size", /*rows_alone=*/true);
  const Roles roles = find_roles(manifest.state);
  TransferOptions quiet = transfer;
  quiet.progress = nullptr;
  const TensorReader reader(manifest, *checkpoint.directory, quiet);
  for (std::size_t i = 0; i < roles.entries.size(); ++i) {
    const Value& value = manifest.state.entries[i].value;
    if (roles.entries[i].role != Role::kModel || !value.is_tensor() ||
        !cut.contains(roles.entries[i].fqn))
      continue;
    const StoredTensor& tensor = manifest.tensors[value.tensor_index()];
    const std::int64_t lost =
        rows_with_values(reader, tensor, value.tensor_index(), rows, tensor.spec.shape[0]);
    if (lost == 0) continue;
    out.notes.push_back({Finding::kVocabulary, Severity::kWarning,
                         fmt::format("{} of the {} rows cut off hold other values than zero", lost,
                                     tensor.spec.shape[0] - rows),
                         "", tensor.name});
  }
  report_unnamed_copies(manifest, edits, out.notes);
  append(out.notes,
         edit_parameters(manifest, edits, same_elements(checkpoint, transfer), asked.optim));
  applied.tensors = edits.size();
  out.applied.push_back(std::move(applied));
}

}  // namespace tessera
