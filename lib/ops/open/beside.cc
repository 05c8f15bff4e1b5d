#include "lib/ops/open/beside.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "lib/format/probe_errors.h"

namespace tessera {
namespace {

/// Suffixes of training state that no format here claims for its own (has_checkpoint_suffix() knows
/// those): trainers' pickles and archives, and weights that only other libraries read.
constexpr std::array<std::string_view, 5> kOtherSuffixes = {".pkl", ".tar", ".npz", ".msgpack",
                                                            ".gguf"};

/// Not a matter of formats but of trainers: what they save beside the checkpoint of any format.
struct Sidecar {
  std::string_view prefix;  // of the name, in lower case
  std::string_view what;
};
constexpr std::array<Sidecar, 17> kSidecars = {{
    {"lr_scheduler", "learning rate schedule"},
    {"scheduler", "learning rate schedule"},
    {"rng", "random number state"},
    {"random_states", "random number state"},
    {"scaler", "loss scale"},
    {"grad_scaler", "loss scale"},
    {"training_args", "arguments of the trainer"},
    {"trainer_state", "state of the trainer"},
    {"train_state", "state of the trainer"},
    {"trainer", "state of the trainer"},
    {"sampler", "place in the data"},
    {"dl_state", "place in the data"},
    {"dataloader", "place in the data"},
    {"custom_checkpoint", "registered object"},
    {"recipe_state", "state of the recipe"},
    {"extra_state", "extra state"},
    {"meta.pt", "Lightning's loops, schedules and hyperparameters"},
}};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// `name` in lower case.
const Sidecar* find_sidecar(std::string_view name) {
  for (const Sidecar& sidecar : kSidecars) {
    const bool is_whole = sidecar.prefix.ends_with(".pt");
    if (is_whole ? name == sidecar.prefix : name.starts_with(sidecar.prefix)) return &sidecar;
  }
  return nullptr;
}

bool has_state_suffix(std::string_view name) {
  return has_checkpoint_suffix(name) ||
         std::ranges::any_of(kOtherSuffixes,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// "optimizer", "optim_states", "model_optim_rng", "pytorch-optimizer-00001": a word of its own.
bool names_an_optimizer(std::string_view name) {
  constexpr std::string_view kWord = "optim";
  for (std::size_t at = name.find(kWord); at != name.npos; at = name.find(kWord, at + 1)) {
    const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
    if (at > 0 && is_letter(name[at - 1])) continue;
    std::size_t end = at;
    while (end < name.size() && is_letter(name[end])) ++end;
    const std::string_view word = name.substr(at, end - at);
    if (word == "optim" || word == "optims" || word.starts_with("optimizer") ||
        word.starts_with("optimstate"))
      return true;
  }
  return false;
}

bool is_adapter(std::string_view name) { return name.starts_with("adapter"); }

/// Weights as libraries call them.
bool names_weights(std::string_view name) {
  for (const std::string_view prefix :
       {"model", "pytorch_model", "tf_model", "flax_model", "adapter", "consolidated",
        "diffusion_pytorch_model", "open_clip", "weights"})
    if (name.starts_with(prefix)) return true;
  return name.ends_with(".gguf");
}

/// Formats that are weights alone, as against those that hold a training state.
bool is_weights_alone(const OpenedCheckpoint& opened) {
  const Roles roles = find_roles(opened.manifest.state);
  return roles.optimizers.empty() && capabilities_of(opened.manifest.format).is_weights;
}

bool is_optimizer_alone(const OpenedCheckpoint& opened) {
  const std::vector<StateEntry>& entries = opened.manifest.state.entries;
  const Roles roles = find_roles(opened.manifest.state);
  if (roles.optimizers.empty()) return false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Role role = roles.entries[i].role;
    const bool is_optim = role == Role::kOptimState || role == Role::kOptimGroup;
    if (entries[i].value.is_tensor() && !is_optim) return false;
  }
  return true;
}

class BesideFinder {
 public:
  BesideFinder(FileSystem& fs, const PathResolver& resolver, const FoundCheckpoint& found,
               const OpenedCheckpoint& opened)
      : fs_(fs), resolver_(resolver), found_(found), opened_(opened) {}

  std::vector<Beside> find() {
    weights_alone_ = is_weights_alone(opened_);
    optimizer_alone_ = is_optimizer_alone(opened_);
    const bool in_own_folder = found_.beside_folder == found_.folder();
    for (const StoredFile& file : opened_.manifest.files) {
      if (in_own_folder) owned_.insert(file.path.substr(0, file.path.find('/')));
      adapter_ = adapter_ || is_adapter(file.path);
    }
    if (!in_own_folder) owned_.insert(split_path(found_.path).second);
    for (const std::string& part : found_.parts) owned_.insert(part);
    for (const Note& note : opened_.manifest.notes)
      (note.severity == Severity::kError ? owned_ : judged_)
          .insert(note.file.substr(0, note.file.find('/')));
    const auto directory = fs_.open_directory(found_.beside_folder);
    for (const FileInfo& info : directory->list()) look_at(info);
    return std::move(out_);
  }

 private:
  void look_at(const FileInfo& info) {
    const std::string& name = info.name;
    if (name.starts_with('.') || owned_.contains(name) || is_pointer_name(name) ||
        name.ends_with("tessera.json") || name == "tessera.manifest.json")
      return;
    const std::string path = join_path(found_.beside_folder, name);
    const auto target = info.type == FileType::kSymlink ? fs_.stat(path) : std::optional(info);
    const bool is_folder = target && target->type == FileType::kDirectory;
    auto beside = is_folder ? folder(path, lower(name)) : std::nullopt;
    if (!beside) beside = file(lower(name));
    if (!beside || (beside->kind == Beside::Kind::kOther && judged_.contains(name))) return;
    beside->path = name;
    if (!target || (target->type != FileType::kRegular && !beside->is_folder)) {
      // Its name says what it was.
      beside->what += target ? ", but no file" : ", but a link that leads nowhere";
    } else if (!beside->is_folder) {
      beside->bytes = target->size_bytes;
    }
    out_.push_back(std::move(*beside));
  }

  std::optional<Beside> file(const std::string& name) const {
    Beside out;
    const bool holds_state = has_state_suffix(name);
    const Sidecar* sidecar = find_sidecar(name);
    if (sidecar != nullptr && (holds_state || name.ends_with("_state.json"))) {
      out.what = sidecar->what;
      return out;
    }
    if (!holds_state) return std::nullopt;
    if (names_an_optimizer(name)) {
      out.kind = Beside::Kind::kOptimizer;
      out.what = "optimizer state";
    } else if (names_weights(name)) {
      const bool other = optimizer_alone_ || (weights_alone_ && is_adapter(name) != adapter_);
      out.kind = other ? Beside::Kind::kWeights : Beside::Kind::kSidecar;
      out.what = is_adapter(name) ? "an adapter" : "weights";
    } else {
      out.kind = Beside::Kind::kOther;
      out.what = "use unknown";
    }
    return out;
  }

  /// Only those that are parts of a state by their names: a folder of another step is a checkpoint
  /// of its own.
  std::optional<Beside> folder(const std::string& path, const std::string& name) const {
    const bool of_deepspeed = name.starts_with("global_step");
    const bool of_fsdp = name.starts_with("pytorch_model_fsdp");
    const bool optimizer = names_an_optimizer(name);
    if (!of_deepspeed && !of_fsdp && !optimizer) return other_adapter(path);
    Beside out;
    out.is_folder = true;
    try {
      if (!resolver_.recognise(path, FileType::kDirectory)) return std::nullopt;
      for (const FileInfo& info : fs_.open_directory(path)->list())
        if (info.type == FileType::kRegular) out.bytes += info.size_bytes;
    } catch (const Error& error) {
      rethrow_unless_of_content(error);  // damaged, or of several formats: there all the same
    }
    out.kind = of_fsdp ? Beside::Kind::kWeights : Beside::Kind::kOptimizer;
    out.what = of_fsdp ? "weights" : of_deepspeed ? "DeepSpeed's state" : "optimizer state";
    return out;
  }

  /// PEFT keeps the adapters of a model but for the default one in folders of their names.
  std::optional<Beside> other_adapter(const std::string& path) const {
    if (!adapter_) return std::nullopt;
    Beside out;
    out.is_folder = true;
    out.what = "an adapter";
    bool holds_weights = false;
    for (const FileInfo& info : fs_.open_directory(path)->list()) {
      holds_weights = holds_weights || info.name.starts_with("adapter_model.");
      if (info.type == FileType::kRegular) out.bytes += info.size_bytes;
    }
    return holds_weights ? std::optional(out) : std::nullopt;
  }

  FileSystem& fs_;
  const PathResolver& resolver_;
  const FoundCheckpoint& found_;
  const OpenedCheckpoint& opened_;
  std::set<std::string> owned_;   // damaged files of the checkpoint among them
  std::set<std::string> judged_;  // of which the reader says what they are
  bool weights_alone_ = false;
  bool optimizer_alone_ = false;
  bool adapter_ = false;  // the weights that were chosen are an adapter's
  std::vector<Beside> out_;
};

/// Those that a conversion must not leave behind without being asked to.
std::vector<Beside> parts_of_state(const std::vector<Beside>& beside) {
  std::vector<Beside> parts;
  std::ranges::copy_if(beside, std::back_inserter(parts), [](const Beside& b) {
    return b.kind == Beside::Kind::kOptimizer || b.kind == Beside::Kind::kWeights;
  });
  return parts;
}

}  // namespace

bool is_sidecar_name(std::string_view name) {
  const std::string text = lower(name);
  const Sidecar* sidecar = find_sidecar(text);
  if (sidecar == nullptr) return false;
  const std::size_t end = sidecar->prefix.size();  // "sampler.bin", and not "samplers_choice.pt"
  return end == text.size() || text[end] < 'a' || text[end] > 'z';
}

void find_beside(FileSystem& fs, const PathResolver& resolver, const FoundCheckpoint& found,
                 OpenedCheckpoint& opened) {
  opened.is_named = found.is_named;
  opened.beside_folder = found.beside_folder;
  if (found.beside_folder.empty()) return;
  opened.beside = BesideFinder(fs, resolver, found, opened).find();
  const std::vector<Beside> parts = parts_of_state(opened.beside);
  if (parts.empty() || found.is_named) return;
  opened.notes.push_back(
      {Finding::kRelatedState, Severity::kWarning,
       fmt::format("not read, though it belongs to the same training state: {}; name it to read it",
                   beside_text(parts)),
       "", ""});
}

std::string beside_text(const std::vector<Beside>& beside) {
  constexpr std::size_t kMost = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, beside.size()); ++i)
    text += fmt::format("{}{} ({})", i ? ", " : "", printable(beside[i].path), beside[i].what);
  if (beside.size() > kMost) text += fmt::format(" and {} more", beside.size() - kMost);
  return text;
}

void refuse_beside(const OpenedCheckpoint& opened) {
  const std::vector<Beside> parts = parts_of_state(opened.beside);
  if (parts.empty()) return;
  const std::string first = join_path(opened.beside_folder, parts[0].path);
  fail(Code::kUnsupported,
       fmt::format("\"{}\" is read as {} alone, and what lies next to it would be lost: {}",
                   printable(opened.display), opened.driver->id(), beside_text(parts)),
       fmt::format("say which part is meant: --only model takes the weights alone, {} as SRC that "
                   "part alone",
                   printable(first)));
}

}  // namespace tessera
