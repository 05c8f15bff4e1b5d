#pragma once
// Every flag of ckpt-reshard and ckpt-convert, declared once: its name, what help, completion and
// the man page say of it, the field of ConvertOptions that it sets, and whether a resumed run has to
// have the same. Two visitors walk the list: the parser (tools/args/convert_flags.cc) and the
// request's hash (request.cc). How a value is typed follows from the field's type.
#include <tessera/format/format_options.h>
#include <tessera/ops/convert.h>

namespace tessera {

struct ConvertFlag {
  const char* names;        // "--world-size"
  const char* placeholder;  // "N", "keep|drop|error"; nullptr: a switch
  const char* help;
};

// Fields that a flag sets otherwise than their types say.
template <class Bool>
struct Cleared {
  Bool& field;  // the flag makes it false
};
template <class Bool>
Cleared(Bool&) -> Cleared<Bool>;  // clang 16 deduces no aggregates by itself
template <class Renames>
struct NameFile {
  Renames& field;  // what the named file lists
};
template <class Renames>
NameFile(Renames&) -> NameFile<Renames>;
template <class Bool, class DType>
struct DTypeOrIndex {
  DType& dtype;
  Bool& as_index;  // the word "as-index"
};
template <class Bool, class DType>
DTypeOrIndex(DType&, Bool&) -> DTypeOrIndex<Bool, DType>;
template <class Bool, class Text>
struct OptionalFolder {
  Bool& given;
  Text& folder;  // "" where the flag has no value
};
template <class Bool, class Text>
OptionalFolder(Bool&, Text&) -> OptionalFolder<Bool, Text>;

template <class OptionalDType>
struct DTypeOrDefault {
  OptionalDType& dtype;  // bfloat16 where the flag has no value
};
template <class OptionalDType>
DTypeOrDefault(OptionalDType&) -> DTypeOrDefault<OptionalDType>;

/// `Options` is ConvertOptions, const or not. A visitor has group(heading), flag(...) for what the
/// result depends on, and run_flag(...) for what only says how it is made.
template <class Options, class Visitor>
void visit_convert_flags(Options& o, Visitor& visit) {
  const auto common = [](const FormatOption& option) {
    return ConvertFlag{option.flag.data(), option.placeholder.data(), option.help.data()};
  };
  visit.group("Layout");
  visit.flag(common(kWorldSizeFlag), o.target.world_size);
  visit.flag(common(kMeshFlag), o.target.mesh);
  visit.flag(common(kPlacementsFlag), o.target.placements);
  visit.flag(common(kReplicateFlag), o.target.replicate);

  visit.group("Names and contents");
  visit.flag({"--rename", "OLD=NEW", "rename parameters, as 'layers.*=h.*'; their state follows"},
             o.names.renames);
  visit.flag({"--strip-prefix", "PREFIX", "take PREFIX off parameter names, as module."},
             o.names.strip_prefix);
  visit.flag({"--map", "FILE",
              "rename by FILE: lines `old new`, or a JSON object; names with * are patterns"},
             NameFile{o.names.map});
  visit.flag({"--rules", "RULES",
              "names and fusion of another system: llama, qwen2, gpt-neox, mixtral, qwen3-moe, "
              "deepseek-v3, glm4-moe, gpt-oss, megatron-fsdp or FILE; then :SIDE and ,heads=N,... "
              "where needed"},
             o.transform.rules);
  visit.flag({"--strict-rules", nullptr,
              "refuse parameters that no rule of --rules names; default: they stay"},
             o.transform.strict_rules);
  visit.flag({"--dtype", "TYPE",
              "cast floating model weights, as bf16, or as-index: as the shards of --as-index have "
              "them; the optimizer stays"},
             DTypeOrIndex{o.transform.dtype, o.dtype_as_index});
  visit.flag({"--keep-dtype", "GLOB=TYPE",
              "cast tensors that match to TYPE, or `keep` them, whatever --dtype says; the first "
              "that matches wins"},
             o.transform.keep_dtypes);
  visit.flag(
      {"--dequantize", "TYPE",
       "quantized weights become plain ones of TYPE (default: bfloat16), by their scales and "
       "tables, which are left out"},
      DTypeOrDefault{o.transform.dequantize});
  visit.flag({"--quantize", "fp8-block|mxfp4|nvfp4",
              "plain weights of linear layers become codes and scales; embeddings, norms, routers "
              "and the output layer stay"},
             o.transform.quantize);
  visit.flag({"--quantize-tensor", "GLOB",
              "parameters that --quantize means; default: weights of linear layers, of mxfp4 the "
              "stacked experts where there are some"},
             o.transform.quantize_tensors);
  visit.flag({"--tied", "keep|drop|error",
              "what becomes of weights with equal bytes under several names; default: as stored, "
              "with --to hf drop"},
             o.transform.tied);
  visit.flag(
      {"--vocab-size", "N", "rows of vocabulary tensors: zeros added or rows cut; state follows"},
      o.transform.vocab_size);
  visit.flag({"--vocab-tensor", "GLOB",
              "parameters that --vocab-size means; default: what --rules declare, or known names"},
             o.transform.vocab_tensors);
  visit.flag(
      {"--optim", "keep|drop",
       "state that cannot follow a parameter that --rules, --vocab-size or --quantize change: "
       "refuse, or leave that parameter's out; default: refuse"},
      o.transform.optim);
  visit.flag({"--values", "keep|drop|error",
              "what becomes of non-tensor values; default: keep, with --to hf drop"},
             o.target.values);
  visit.flag({"--opaque", "keep|drop|error",
              "what becomes of objects of unknown classes; default: keep, error where the target "
              "cannot hold them"},
             o.target.opaque);
  visit.flag(
      {"--rank-state", "keep|drop|rank0|error",
       "what becomes of state that ranks own; default: keep, error where their number changes"},
      o.rank_state);
  visit.flag({"--optim-keys", "keep|fqn|id|flat",
              "key optimizer state by parameter name, by integer id, or flattened as PyTorch does; "
              "default: as stored"},
             o.optim_keys);
  visit.flag({"--prefer", "stored|master",
              "take weights as stored (the default), or from their fp32 master copies"},
             o.prefer_master);
  visit.flag({"--delta-from", "BASE",
              "write weight deltas against the checkpoint BASE: what changed, as safetensors that "
              "--base=BASE reads"},
             o.delta_from);
  visit.flag({"--copy-assets", "DIR",
              "copy configuration, tokenizer and template files from DIR (default: beside the "
              "source)"},
             OptionalFolder{o.copy_assets, o.assets_directory});
  visit.flag({"--base-model", "MODEL",
              "the model it began from, a folder or a name in the hub's cache, as org/name: copy "
              "its configuration, tokenizer and template files"},
             o.base);

  visit.group("Writing");
  visit.run_flag(
      {"--dry-run", nullptr, "say what would be written, and what it costs; write nothing"},
      o.dry_run);
  visit.run_flag({"--force", nullptr, "replace DST when it exists"}, o.force);
  visit.run_flag({"--resume", nullptr, "continue an interrupted run of the same command"},
                 o.resume);
  visit.run_flag({"--no-keep", nullptr,
                  "when interrupted, or when a resumed run fails, keep nothing for --resume"},
                 Cleared{o.keep});
  visit.run_flag({"--verify", nullptr,
                  "prove content, values, steps and groups against SRC before publishing; default: "
                  "with --to hf"},
                 o.verify);
  visit.run_flag({"--no-verify", nullptr, "publish without that proof"}, o.no_verify);
  visit.flag(
      {"--salvage", nullptr, "write what can be read of a damaged SRC; exit 1 if anything is lost"},
      o.salvage);
}

}  // namespace tessera
