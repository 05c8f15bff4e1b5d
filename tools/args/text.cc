#include "tools/args/text.h"

namespace tessera::tools {
namespace {

constexpr std::string_view kPathRule =
    "PATH is a checkpoint, a pointer to one (latest), a folder with parts of one state, or a "
    "folder "
    "with a single checkpoint below it. URLs are not opened.";
constexpr std::string_view kConvertRule =
    "DST ending in .safetensors, .pt or .h5 is one file and implies --to, and so is .pth, .ckpt, "
    ".bin (torch-save) or .hdf5 where no other format is asked for; anything else is a folder. "
    "Nothing shows at DST until all of it is written, synced and proved complete.";

CommandText inspect_text() {
  return {
      "open, prove and compare sharded training checkpoints",
      {"[SUBCOMMAND] PATH... [OPTIONS]"},
      {"Opens a checkpoint of any size without a GPU, a framework or the model's code. Without a "
       "subcommand it prints the summary.",
       kPathRule,
       "Exit status: 0 done; 1 a check ran and is negative; 2 usage; 3 PATH not found, permission "
       "or I/O; 4 corrupt or unsafe; 5 unsupported; 6 not enough memory or disk; 70 internal; "
       "130, 143, 141 signals."},
      {{"ckpt-inspect run/step-1000", "what is it, is it whole, how large is it"},
       {"ckpt-inspect ls run/step-1000 --sort size --top 10", "its ten largest tensors"},
       {"ckpt-inspect optim run/step-1000",
        "optimizer state: health, and which parameters move most"},
       {"ckpt-inspect verify run/step-1000", "read every byte, check every checksum"},
       {"ckpt-inspect diff run/step-1000 model.safetensors",
        "same content, whatever the sharding?"}}};
}

CommandText summary_text() {
  return {
      "what a checkpoint is: format, layout, bytes by kind, optimizer, damage",
      {"PATH... [OPTIONS]"},
      {"Reads headers and metadata alone. Of several checkpoints, and of a folder with several, it "
       "prints which is the newest whole one, a row for each, and what is damaged.",
       kPathRule},
      {{"ckpt-inspect run/step-1000", "the summary"},
       {"ckpt-inspect run", "the checkpoints of a run: which are whole?"},
       {"ckpt-inspect run/step-* --strict", "exit 1 if one is damaged"},
       {"ckpt-inspect summary model.pt --globals", "every class and function its pickle names"}}};
}

CommandText ls_text() {
  return {"the tensors and values inside",
          {"PATH [OPTIONS]"},
          {"Reads headers and metadata alone.", kPathRule},
          {{"ckpt-inspect ls run/step-1000 --include 'model.*'", "the model's tensors"},
           {"ckpt-inspect ls run/step-1000 --chunks --rank 3", "what rank 3 wrote, and where"},
           {"ckpt-inspect ls model.pt --format json", "the same for programs"}}};
}

CommandText show_text() {
  return {
      "one tensor, with its chunks and values, or one value",
      {"PATH NAME [OPTIONS]"},
      {"NAME is a dotted name as ls prints it. A name with others below it lists them.", kPathRule},
      {{"ckpt-inspect show run/step-1000 model.head.weight", "metadata, chunk map, corners"},
       {"ckpt-inspect show run/step-1000 model.head.weight --slice 0:4,:8", "a block of values"},
       {"ckpt-inspect show model.pt head.weight --npy head.npy", "write it for NumPy"}}};
}

CommandText stat_text() {
  return {"numbers about the values of each tensor; up to three in full, with histograms",
          {"PATH [OPTIONS]"},
          {"Streams the selected tensors in bounded memory. NaN and Inf are findings: exit 1.",
           kPathRule},
          {{"ckpt-inspect stat run/step-1000 --only model",
            "every parameter's range, spread and quantiles"},
           {"ckpt-inspect stat run/step-1000 --include model.head.weight", "one tensor in full"}}};
}

CommandText optim_text() {
  return {
      "optimizer state per parameter, its health, and which parameters move most",
      {"A [B] [OPTIONS]"},
      {"Ranks parameters by the size of the next update against the weight, lr |m| / (sqrt(v) + "
       "eps) / |w|. With a second checkpoint B it ranks by the growth of v from A to B. Partial "
       "or contradictory state is a finding: exit 1.",
       kPathRule},
      {{"ckpt-inspect optim run/step-1000", "state, findings and the ranking"},
       {"ckpt-inspect optim run/step-1000 run/step-1100", "whose gradients grew in between"}}};
}

CommandText hash_text() {
  return {"content as SHA-256, whatever the sharding, container and file order",
          {"PATH [OPTIONS]"},
          {"Two checkpoints with the same tensors have the same root.", kPathRule},
          {{"ckpt-inspect hash run/step-1000", "a line per tensor, and the root"},
           {"ckpt-inspect hash run/step-1000 --format json > sums.json",
            "a report for verify --against"}}};
}

CommandText verify_text() {
  return {
      "is it whole: coverage, sizes, checksums, archives",
      {"PATH... [OPTIONS]"},
      {"Damage is listed as findings with stable codes: exit 1. Where the metadata itself cannot "
       "be "
       "parsed, nothing can be listed: exit 4.",
       kPathRule},
      {{"ckpt-inspect verify run/step-1000", "read every byte"},
       {"ckpt-inspect verify run/step-1000 --quick", "metadata and sizes, in a moment"},
       {"ckpt-inspect verify out.safetensors --against sums.json", "same content as reported?"}}};
}

CommandText scan_text() {
  return {
      "what loading these files would run: every file, one verdict each",
      {"PATH... [OPTIONS]"},
      {"Looks into every file below PATH, whatever its format: pickles alone, in archives and "
       "behind each other, Keras models, code, links. SAFE is plain data, UNKNOWN holds objects "
       "of classes, DANGEROUS calls functions. Nothing is run. Exit 0, 1 and 4 by the worst "
       "verdict.",
       "PATH is a file or a folder. URLs are not opened."},
      {{"ckpt-inspect scan downloads/model", "may this be loaded?"},
       {"ckpt-inspect scan a.pt b.bin --format ndjson", "a line per file, for programs"}}};
}

CommandText report_text() {
  return {
      "a page to look at: modules, tensors, optimizer, two checkpoints compared",
      {"A [B] -o FILE.html [OPTIONS]"},
      {"One HTML file that opens anywhere, without a network and without Tessera. Without --stats "
       "it reads headers and metadata alone; with B it compares the two, which reads both.",
       kPathRule},
      {{"ckpt-inspect report run/step-1000 -o step-1000.html", "what it holds, and where"},
       {"ckpt-inspect report run/step-1000 -o step-1000.html --stats",
        "with histograms, norms and the optimizer's next updates"},
       {"ckpt-inspect report run/step-900 run/step-1000 -o change.html", "what training moved"}}};
}

CommandText audit_text() {
  return {
      "a run's checkpoints over time: stale, torn, reset or diverged ones",
      {"RUN [OPTIONS]"},
      {"Opens every checkpoint below RUN by headers and metadata, and holds each against the ones "
       "before it: newest whole one, steps, missing parts, optimizer state that begins again, "
       "content that did not change, ties. With --deep it reads weights and optimizer state, too: "
       "NaN, norms, updates, moments that were reset, tensors that never moved, spikes, replicas. "
       "It removes nothing. Findings have codes; errors are exit 1.",
       "RUN is a folder with checkpoints below it, or one checkpoint."},
      {{"ckpt-inspect audit run", "which one to resume from, and what is wrong with the others"},
       {"ckpt-inspect audit run --deep --budget 20GB --cache ~/.cache/audit",
        "with the values, sampled to 20 GB, kept for the next time"}}};
}

CommandText trend_text() {
  return {"one number of some tensors over a run's checkpoints, as lines",
          {"RUN --tensor GLOB [--of norm|v_max|update] [OPTIONS]"},
          {"Reads the tensors that match from every checkpoint below RUN, and draws their norms, "
           "their largest second moment, or their change since the checkpoint before.",
           "RUN is a folder with checkpoints below it, or one checkpoint."},
          {{"ckpt-inspect trend run --tensor 'model.layers.*.weight' --of update",
            "which layer moves, and when"},
           {"ckpt-inspect trend run --tensor '*embed*' --of norm --format ndjson",
            "a line for each point, for programs"}}};
}

CommandText browse_text() {
  return {
      "walk through a checkpoint, or two side by side, on the terminal",
      {"A [B] [OPTIONS]"},
      {"A tree of modules with sizes, search, sort and marks; the page of a tensor with its facts, "
       "histogram, values, pieces and optimizer state; with B what differs. ? shows the keys. "
       "Values are read when they are looked at. Names that were marked are printed at the end.",
       kPathRule},
      {{"ckpt-inspect browse run/step-1000", "what is in it, by keys"},
       {"ckpt-inspect browse run/step-900 run/step-1000", "side by side; = compares elements"}}};
}

CommandText explain_text() {
  return {
      "what a code means, its usual cause, and what to do",
      {"[CODE...] [OPTIONS]"},
      {"Explains the codes that verify, optim, stat, audit and the notes of every command print. "
       "Without CODE it lists all of them. An unknown code is exit 3."},
      {{"ckpt-inspect explain CK011", "one code in full"},
       {"ckpt-inspect explain", "every code, a line each"}}};
}

CommandText diff_text() {
  return {"do two checkpoints hold the same",
          {"A B [OPTIONS]"},
          {"Compares names, types, shapes, elements and values of any two formats and shardings. "
           "Exit 0 equal, 1 different.",
           kPathRule},
          {{"ckpt-inspect diff run/step-1000 resharded", "equal bit for bit?"},
           {"ckpt-inspect diff a b.safetensors --root-a model --as bfloat16 --ulp 1",
            "a model against its rounded copy"}}};
}

CommandText reshard_text() {
  return {
      "write a checkpoint for another number of ranks",
      {"SRC DST (--world-size N | --mesh dp=2,tp=4 [--placements 'GLOB=P,P' ...]) [OPTIONS]"},
      {"Reads SRC once and writes its content to DST, laid out for N ranks or for a mesh, in "
       "bounded memory. The format stays unless --to is given.",
       kConvertRule},
      {{"ckpt-reshard run/step-1000 out --world-size 3", "from any number of ranks to 3"},
       {"ckpt-reshard run/step-1000 out --mesh dp=2,tp=4 --placements "
        "'*.wq.weight=shard(0),shard(0)'",
        "onto a mesh"},
       {"ckpt-reshard run/step-1000 out --world-size 8 --dry-run", "files, bytes and memory first"},
       {"ckpt-reshard run/step-1000 out --world-size 8 --verify",
        "prove it before it is published"},
       {"ckpt-reshard run/step-1000 out --world-size 8 --resume",
        "continue after an interruption"}}};
}

CommandText convert_text() {
  return {
      "write a checkpoint in another format",
      {"SRC DST --to FORMAT [OPTIONS]"},
      {"Reads SRC once and writes its content to DST in another format, in bounded memory. What "
       "the target cannot hold is never lost silently: --values, --opaque and --rank-state say "
       "what becomes of it.",
       kConvertRule},
      {{"ckpt-convert run/step-1000 model.safetensors --root model", "the model as one file"},
       {"ckpt-convert run/step-1000 hub --to hf --base-model org/model",
        "a folder for the Hugging Face hub"},
       {"ckpt-convert run/step-1000 hub --to hf --as-index=base --dtype as-index",
        "in the files and types of the model it began from"},
       {"ckpt-convert run/step-1000 full.pt", "one torch.save file"},
       {"ckpt-convert full.pt sharded --to torch-dcp --world-size 8", "sharded over 8 ranks"}}};
}

/// What --help lists of each, before --help-all: the ten that most people need.
std::vector<std::string_view> first_options(Verb verb) {
  switch (verb) {
    case Verb::kSummary:
      return {"--strict",  "--globals", "--explain-path", "--only",
              "--include", "--from",    "--format",       "--no-pager"};
    case Verb::kLs:
      return {"--tree",   "--sort", "--top",  "--include", "--only",
              "--chunks", "--rank", "--file", "--from",    "--format"};
    case Verb::kShow:
      return {"--slice", "--npy", "--root", "--from", "--format", "--no-pager"};
    case Verb::kStat:
      return {"--include",       "--only",      "--sort",   "--top",    "--quantiles",
              "--log-histogram", "--row-norms", "--strict", "--format", "--threads"};
    case Verb::kOptim:
      return {"--top", "--sort", "--strict", "--include", "--from", "--format", "--threads"};
    case Verb::kHash:
      return {"--only", "--include", "--strict", "--from", "--format", "--threads"};
    case Verb::kVerify:
      return {"--quick", "--deep", "--against", "--require-sums", "--strict",
              "--only",  "--from", "--format",  "--threads"};
    case Verb::kReport:
      return {"--output", "--stats", "--force", "--only", "--include", "--from", "--threads"};
    case Verb::kDiff:
      return {"--root-a", "--root-b", "--only", "--as",    "--abs",
              "--rel",    "--by",     "--sort", "--quiet", "--limit"};
    case Verb::kReshard:
      return {"--world-size", "--mesh",    "--placements", "--to",     "--verify",
              "--salvage",    "--dry-run", "--force",      "--resume", "--threads"};
    case Verb::kConvert:
      return {"--to",     "--world-size", "--dtype",   "--only",  "--base-model",
              "--verify", "--salvage",    "--dry-run", "--force", "--resume"};
    case Verb::kAudit:
      return {"--deep",   "--budget", "--cache", "--keep",   "--html",
              "--strict", "--force",  "--from",  "--format", "--threads"};
    case Verb::kTrend:
      return {"--tensor", "--of", "--budget", "--cache", "--from", "--format", "--threads"};
    case Verb::kBrowse:
    case Verb::kScan:
    case Verb::kExplain:
      break;
  }
  return {};
}

CommandText text_of(Verb verb) {
  switch (verb) {
    case Verb::kSummary:
      return summary_text();
    case Verb::kLs:
      return ls_text();
    case Verb::kShow:
      return show_text();
    case Verb::kStat:
      return stat_text();
    case Verb::kOptim:
      return optim_text();
    case Verb::kHash:
      return hash_text();
    case Verb::kVerify:
      return verify_text();
    case Verb::kScan:
      return scan_text();
    case Verb::kExplain:
      return explain_text();
    case Verb::kReport:
      return report_text();
    case Verb::kAudit:
      return audit_text();
    case Verb::kTrend:
      return trend_text();
    case Verb::kBrowse:
      return browse_text();
    case Verb::kDiff:
      return diff_text();
    case Verb::kReshard:
      return reshard_text();
    case Verb::kConvert:
      return convert_text();
  }
  return {};
}

}  // namespace

CommandText tool_text(Tool tool) {
  switch (tool) {
    case Tool::kInspect:
      return inspect_text();
    case Tool::kReshard:
      return reshard_text();
    case Tool::kConvert:
      return convert_text();
  }
  return {};
}

CommandText verb_text(Verb verb) {
  CommandText text = text_of(verb);
  text.first_options = first_options(verb);
  return text;
}

WordCount word_count(Verb verb) {
  switch (verb) {
    case Verb::kShow:
      return {2, 2, "PATH NAME"};
    case Verb::kOptim:
    case Verb::kReport:
    case Verb::kBrowse:
      return {1, 2, "A [B]"};
    case Verb::kSummary:
    case Verb::kVerify:
    case Verb::kScan:
      return {1, 4096, "PATH..."};
    case Verb::kExplain:
      return {0, 64, "[CODE...]"};
    case Verb::kAudit:
    case Verb::kTrend:
      return {1, 1, "RUN"};
    case Verb::kDiff:
      return {2, 2, "A B"};
    case Verb::kReshard:
    case Verb::kConvert:
      return {2, 2, "SRC DST"};
    default:
      return {1, 1, "PATH"};
  }
}

}  // namespace tessera::tools
