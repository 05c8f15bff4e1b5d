#pragma once
// Notes with a word instead of a number: where PATH led, and what a conversion changed.
// Rows in the order of the enum (findings.cc checks it).
#include <tessera/state/findings.h>

#include <array>

namespace tessera {

inline constexpr std::array<FindingInfo, 16> kNoteRows = {{
    {Finding::kNone, "", Severity::kInfo, "info", "(all commands)", "a remark without a code", "",
     "", ""},
    {Finding::kAsset, "ASSET", Severity::kInfo, "info, warning", "(conversion)",
     "a file beside the checkpoint (`config.json`, a tokenizer) was copied with changes, or was "
     "not copied",
     "file", "The file belongs to the model but is no checkpoint data, or it is a symbolic link.",
     "Copy it yourself if the result needs it."},
    {Finding::kCast, "CAST", Severity::kInfo, "info, warning", "(conversion)",
     "`--dtype` or a rule changed the dtype; a warning where values overflowed, became zero or "
     "lost NaN",
     "tensor", "The target dtype has a smaller range.",
     "Use a dtype with a larger range for the tensors that are named."},
    {Finding::kElsewhere, "ELSEWHERE", Severity::kWarning, "warning", "(all commands)",
     "a part of the checkpoint that was not asked for is damaged", "file",
     "Damage lies outside of the selected entries.", "Run `ckpt-inspect verify` for the list."},
    {Finding::kIndexWritten, "INDEX", Severity::kInfo, "info", "(conversion)",
     "`--as-index`: tensors that the index lists are not in the result", "",
     "The index is of a larger model, or tensors were excluded.",
     "Check the list if the result should be complete."},
    {Finding::kMaster, "MASTER", Severity::kInfo, "info, warning", "(conversion)",
     "`--prefer master`: how many weights come from their fp32 master copies; a warning counts the "
     "parameters that have none",
     "", "Optimizers for mixed precision keep fp32 copies of the weights.", "Nothing to do."},
    {Finding::kNames, "NAMES", Severity::kInfo, "info, warning", "(conversion)",
     "`_orig_mod.` of torch.compile was removed from names; a warning where names keep a prefix "
     "that the model's library does not know",
     "", "The model was saved while it was compiled or wrapped.",
     "Remove the prefix with `--strip-prefix` or `--rename`."},
    {Finding::kPath, "PATH", Severity::kInfo, "info, warning", "(all commands)",
     "which pointer, folder or file PATH was resolved to, and what else was there", "file",
     "PATH is a folder above the checkpoint, a pointer file, or one of several candidates.",
     "Name the checkpoint itself if another one was meant."},
    {Finding::kRankState, "RANKS", Severity::kWarning, "warning", "(conversion)",
     "what became of values that each rank keeps for itself, as the number of ranks changes", "",
     "Random states and data loaders cannot be split or merged.", "Choose with `--rank-state`."},
    {Finding::kRekey, "REKEY", Severity::kInfo, "info", "(conversion)",
     "optimizer state was renamed from ids to names, or from names to ids", "",
     "`--optim-keys`, or the target format, asks for it.", "Nothing to do."},
    {Finding::kResume, "RESUME", Severity::kWarning, "warning", "(conversion)",
     "an interrupted run is not resumed: everything is written again", "file",
     "The source is not the one that the interrupted run read.", "Nothing to do."},
    {Finding::kRules, "RULES", Severity::kWarning, "warning", "(conversion)",
     "parameters that no rule of `--rules` names keep their names", "",
     "The rules are of another model, or leave some parameters out.",
     "Add rules for them, or pass `--strict-rules` to refuse them."},
    {Finding::kNoSeal, "SEAL", Severity::kWarning, "warning", "(all commands)",
     "our own manifest is there but cannot be used, so no file is checked against it", "file",
     "The manifest is damaged, or of other files.",
     "Run `ckpt-inspect verify`, which reports it as CK044."},
    {Finding::kTied, "TIED", Severity::kInfo, "info", "(conversion)",
     "a tied weight was left out, as its bytes equal those of another", "tensor",
     "The target format stores shared weights once.", "Nothing to do; choose with `--tied`."},
    {Finding::kTracker, "TRACKER", Severity::kInfo, "info, warning", "(conversion)",
     "whether `latest_checkpointed_iteration.txt` names the result", "file",
     "The result was written into a folder of Megatron iterations.",
     "Edit the file yourself if it should name another iteration."},
    {Finding::kVocabulary, "VOCAB", Severity::kInfo, "info, warning", "(conversion)",
     "rows of the vocabulary were padded or removed", "tensor", "`--vocab-size` was given.",
     "Check the message: it counts removed rows that were not zero."},
}};

}  // namespace tessera
