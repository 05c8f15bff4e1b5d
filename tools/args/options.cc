// Which flags each command has, and what they say about themselves.
#include "tools/args/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/args/values.h"

namespace tessera::tools {
namespace {

void add_output(Options& o) {
  Arguments& a = o.to;
  o.group("Output");
  o.value("--format", "human|json|ndjson",
          "form of the result on stdout: for people, one JSON document, or one document a line",
          [&a](auto& flag, auto& v) { a.format = output_format(flag, v); });
  o.value("--progress", "auto|bar|json|none",
          "progress on stderr; auto: a bar on a terminal, elsewhere one plain line every 30 s",
          [&a](auto& flag, auto& v) { a.progress = progress_mode(flag, v); });
  o.flag("--no-color", "no colours (they show on a terminal only; NO_COLOR does the same)",
         a.no_color);
}

void add_limits(Options& o) {
  Arguments& a = o.to;
  o.group("Limits");
  o.value("--mem-limit", "SIZE",
          "bound of staged tensor bytes, as 512MiB or 2GB, at least 1MiB; default: the smaller of "
          "1GiB and half of the cgroup's limit",
          [&a](auto& flag, auto& v) { a.mem_limit_bytes = memory_limit_in_bytes(flag, v); });
  o.value(
      "--threads", "N", "worker threads; default: CPU affinity and cgroup quota",
      [&a](auto& flag, auto& v) { a.threads = static_cast<int>(whole_number(flag, v, 1, 1024)); });
}

void add_source(Options& o, bool two_sources) {
  Arguments& a = o.to;
  o.group("Source");
  if (two_sources) {
    o.format("--from-a", "read A as this format; default: detected by content", a.from_a);
    o.format("--from-b", "read B as this format; default: detected by content", a.from_b);
    o.text("--root-a", "NAME", "treat the subtree NAME of A as the whole checkpoint", a.root_a);
    o.text("--root-b", "NAME", "treat the subtree NAME of B as the whole checkpoint", a.root_b);
  } else {
    o.format("--from", "read as this format; default: detected by content", a.from);
    o.text("--root", "NAME", "treat the subtree NAME as the whole checkpoint", a.root);
  }
  o.text("--flat-layout", "FILE",
         "which parameters FSDP1's flat parameters hold, as JSON, where the rank files do not say",
         a.flat_layout);
  o.flag(
      "--assume-plain",
      "Megatron's rank files: treat a tensor without a tensor-parallel rule as sharded by rows, if "
      "it is sharded; default: exit 5",
      a.assume_plain);
  o.group("Selection");
  o.texts("--include", "GLOB", "only names that match the whole GLOB; * crosses dots", a.include);
  o.texts("--exclude", "GLOB", "leave out names that match; wins over --include", a.exclude);
  o.choice("--only", "model|optim|other", "only the model, the optimizer, or all else", a.only);
}

void add_ls(Options& o) {
  Arguments& a = o.to;
  o.group("Listing");
  o.flag("--chunks", "one line per stored chunk: its place in the tensor and in the files",
         a.chunks);
  o.whole("--rank", "only what writing rank N stored", 0, a.rank);
  o.text("--file", "FILE", "only what lies in FILE, a name or glob within the checkpoint", a.file);
  o.choice("--sort", "stored|name|size|file|offset", "order; default: as stored", a.sort);
  o.whole("--top", "only the first N after sorting", 1, a.top);
}

void add_show(Options& o) {
  o.group("Values");
  o.text("--slice", "RANGES", "which elements, as 0:4,:8 or 3,: (Python's rules, step 1)",
         o.to.slice);
  o.text("--npy", "FILE", "also write the slice as a NumPy file; - is stdout, and nothing else is",
         o.to.npy);
}

void add_level(Options& o, const char* name, const char* text, VerifyLevel level) {
  Arguments& a = o.to;
  o.switch_to(name, text, [&a, level] { a.level = level; });
}

void add_verify(Options& o) {
  o.group("Checks");
  add_level(o, "--quick", "metadata and file sizes only", VerifyLevel::kQuick);
  add_level(o, "--full", "every byte and checksum as well (the default)", VerifyLevel::kFull);
  add_level(o, "--deep", "values as well: replicas equal, pads zero", VerifyLevel::kDeep);
  o.text("--against", "FILE", "also compare with FILE: a hash report, or a tessera.manifest.json",
         o.to.against);
  o.flag("--require-sums", "tensor bytes without a checksum are an error", o.to.require_sums);
}

void add_diff(Options& o) {
  Arguments& a = o.to;
  o.group("Comparison");
  o.real("--abs", "values may differ by X", a.abs_tolerance);
  o.real("--rel", "values may differ by X times the larger magnitude", a.rel_tolerance);
  o.whole("--ulp", "values may differ by N units in the last place", 0, a.ulp_tolerance);
  o.text("--as", "DTYPE", "round both sides to DTYPE first, as bfloat16", a.as_dtype);
  o.flag("-q,--quiet", "print nothing: the exit status is the answer", a.quiet);
  o.whole("-n,--limit", "list at most N differences; default 20 for people, all in JSON", 1,
          a.limit);
}

void add_strict(Options& o) {
  o.flag("--strict", "exit 1 on warnings too, not on errors alone", o.to.strict);
}

void add_layout(Options& o) {
  Arguments& a = o.to;
  o.group("Layout");
  o.whole("--world-size", "number of writing ranks of the result", 1, a.world_size);
  o.choice("--zero-stage", "1|2|3",
           "DeepSpeed: the ZeRO stage that is written; default: the source's, else 2",
           a.zero_stage);
  o.text("--mesh", "DIMS", "ranks as a mesh of named dims, as dp=2,tp=4", a.mesh);
  o.repeated("--placements", "GLOB=P,P",
             "how tensors that match are laid on the mesh: shard(d), strided(d,f) or replicate, "
             "one per dim; first match wins",
             [&a](auto& flag, auto& v) { a.placements.push_back(key_and_value(flag, v)); });
  o.texts("--replicate", "GLOB", "store tensors that match as one chunk", a.replicate);
}

void add_contents(Options& o) {
  Arguments& a = o.to;
  o.group("Names and contents");
  o.texts("--rename", "OLD=NEW", "rename parameters, as 'layers.*=h.*'; their state follows",
          a.rename);
  o.text("--strip-prefix", "PREFIX", "take PREFIX off parameter names, as module.", a.strip_prefix);
  o.text("--map", "FILE",
         "rename by FILE: lines `old new`, or a JSON object; names with * are patterns",
         a.map_file);
  o.text("--rules", "RULES",
         "names and fusion of another system: llama, qwen2, mixtral, gpt-neox or FILE; then :SIDE "
         "and ,heads=N,... where needed",
         a.rules);
  o.flag("--strict-rules", "refuse parameters that no rule of --rules names; default: they stay",
         a.strict_rules);
  o.text(
      "--dtype", "TYPE",
      "cast floating model weights, as bf16, or as-index: as the shards of --as-index have them; "
      "the optimizer stays",
      a.dtype);
  o.texts("--keep-dtype", "GLOB=TYPE",
          "cast tensors that match to TYPE, or `keep` them, whatever --dtype says; the first that "
          "matches wins",
          a.keep_dtypes);
  o.choice("--tied", "keep|drop|error",
           "what becomes of weights with equal bytes under several names; default: as stored, with "
           "--to hf drop",
           a.tied);
  o.whole("--vocab-size", "rows of vocabulary tensors: zeros added or rows cut; state follows", 1,
          a.vocab_size);
  o.texts("--vocab-tensor", "GLOB",
          "parameters that --vocab-size means; default: what --rules declare, or known names",
          a.vocab_tensors);
  o.choice("--values", "keep|drop|error", "what becomes of non-tensor values", a.values);
  o.choice("--opaque", "keep|drop|error", "what becomes of objects of unknown classes", a.opaque);
  o.choice("--rank-state", "keep|drop|rank0|error", "what becomes of state that ranks own",
           a.rank_state);
  o.choice("--optim-keys", "keep|fqn|id",
           "key optimizer state by parameter name or by integer id; default: as stored",
           a.optim_keys);
  o.choice("--prefer", "stored|master", "take weights from their fp32 master copies", a.prefer);
  o.bytes("--max-shard-size", "safetensors: cut into files of at most SIZE", a.max_shard_bytes);
  o.optional_value(
      "--as-index", "PATH",
      "safetensors: files named and split as this index (or that of a folder) says; default: SRC's",
      [&a](auto&, auto& v) { a.as_index = v == kBareValue ? std::string() : v; });
  o.optional_value(
      "--copy-assets", "DIR",
      "copy configuration, tokenizer and template files from DIR (default: beside the source)",
      [&a](auto&, auto& v) { a.copy_assets = v == kBareValue ? std::string() : v; });
}

void add_writing(Options& o) {
  Arguments& a = o.to;
  o.group("Writing");
  o.flag("--dry-run", "say what would be written, and what it costs; write nothing", a.dry_run);
  o.flag("--force", "replace DST when it exists", a.force);
  o.flag("--resume", "continue an interrupted run of the same command", a.resume);
  o.flag("--no-keep", "when interrupted, or when a resumed run fails, keep nothing for --resume",
         a.no_keep);
  o.flag("--verify", "prove content, values, steps and groups against SRC before publishing",
         a.verify);
  o.flag("--salvage", "write what can be read of a damaged SRC; exit 1 if anything is lost",
         a.salvage);
}

}  // namespace

void Options::text(const char* names, const char* placeholder, const char* text,
                   std::string& into) {
  value(names, placeholder, text, [&into](auto&, auto& v) { into = v; });
}
void Options::texts(const char* names, const char* placeholder, const char* text,
                    std::vector<std::string>& into) {
  repeated(names, placeholder, text, [&into](auto&, auto& v) { into.push_back(v); });
}
void Options::choice(const char* names, const char* choices, const char* text, std::string& into) {
  value(names, choices, text,
        [&into, choices](auto& flag, auto& v) { into = one_of(flag, v, choices); });
}
void Options::format(const char* names, const char* text, std::string& into, bool presets) {
  value(names, kFormatPlaceholder, text,
        [&into, presets](auto& flag, auto& v) { into = format_id(flag, v, presets); });
}
void Options::whole(const char* names, const char* text, std::int64_t minimum,
                    std::optional<std::int64_t>& into) {
  value(names, "N", text,
        [&into, minimum](auto& flag, auto& v) { into = whole_number(flag, v, minimum); });
}
void Options::bytes(const char* names, const char* text, std::optional<std::uint64_t>& into) {
  value(names, "SIZE", text, [&into](auto& flag, auto& v) { into = size_in_bytes(flag, v); });
}
void Options::real(const char* names, const char* text, std::optional<double>& into) {
  value(names, "X", text, [&into](auto& flag, auto& v) { into = tolerance(flag, v); });
}

void add_verb_options(Options& o, Verb verb) {
  const bool writes = verb == Verb::kReshard || verb == Verb::kConvert;
  if (writes) {
    o.group("Target");
    const std::string formats = fmt::format("{}", fmt::join(handled_formats(true), ", "));
    const std::string text =
        verb == Verb::kConvert
            ? fmt::format("format of the result: {} (the Hugging Face preset of safetensors)",
                          formats)
            : fmt::format("format of the result, default the source's: {}", formats);
    o.format("--to", text.c_str(), o.to.to, true);
    add_layout(o);
    add_contents(o);
    add_writing(o);
  }
  if (verb == Verb::kSummary) {
    o.group("Listing");
    o.flag(
        "--globals",
        "every pickle global, and scan's verdict on every file of PATH; exit 4 if one is dangerous",
        o.to.globals);
  }
  if (verb == Verb::kLs) add_ls(o);
  if (verb == Verb::kShow) add_show(o);
  if (verb == Verb::kVerify) add_verify(o);
  if (verb == Verb::kDiff) add_diff(o);
  if (verb == Verb::kStat || verb == Verb::kOptim) o.group("Checks");
  if (verb == Verb::kStat || verb == Verb::kOptim || verb == Verb::kVerify) add_strict(o);
  if (verb == Verb::kHash || verb == Verb::kDiff)
    o.flag("--strict", "exit 1 where a value could not be compared to the end", o.to.strict);
  const bool reads_data = verb != Verb::kExplain;
  if (reads_data && verb != Verb::kScan) add_source(o, verb == Verb::kDiff);
  if (reads_data) add_limits(o);
  add_output(o);
}

}  // namespace tessera::tools
