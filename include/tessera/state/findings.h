#pragma once
// Findings: one row for every code that a note can have, with its severity, meaning, usual cause and
// cure. Codes never change: scripts match them. docs/verify-codes.md, docs/optim-codes.md and
// docs/audit-codes.md are generated from this table, and `ckpt-inspect explain CODE` prints a row.
//
// To add a code: an enumerator here, and a row at the same place in lib/state/finding_rows/.
// Everything here is constant; thread-safe.
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tessera {

/// An error makes the exit status 1; a warning does so with --strict alone.
enum class Severity : std::uint8_t { kInfo, kWarning, kError };

/// "info", "warning" or "error".
std::string_view severity_name(Severity severity);

/// What was found. One enumerator has one meaning in every format.
enum class Finding : std::uint8_t {
  // Notes named by a word.
  kNone,          // no code
  kAsset,         // ASSET
  kCast,          // CAST
  kElsewhere,     // ELSEWHERE
  kIndexWritten,  // INDEX
  kMaster,        // MASTER
  kNames,         // NAMES
  kPath,          // PATH
  kRankState,     // RANKS
  kRekey,         // REKEY
  kResume,        // RESUME
  kRules,         // RULES
  kNoSeal,        // SEAL
  kTied,          // TIED
  kTracker,       // TRACKER
  kVocabulary,    // VOCAB
  // Files, indexes, checksums, and what lies next to a checkpoint.
  kUnopenable,         // CK001
  kMissingFile,        // CK010
  kShortFile,          // CK011
  kHole,               // CK012
  kOverlap,            // CK013
  kOutOfBounds,        // CK014
  kUnplaced,           // CK015
  kUnusedEntry,        // CK016
  kDifferentValues,    // CK017
  kStaleFile,          // CK018
  kBadItem,            // CK019
  kUnknownAttribute,   // CK020
  kReplicas,           // CK021
  kRawValue,           // CK022
  kTrailingBytes,      // CK023
  kLost,               // CK024
  kLostAlias,          // CK025
  kNoChecksums,        // CK027
  kNotInShard,         // CK030
  kUnlistedTensor,     // CK031
  kTotalSize,          // CK032
  kStaleCopy,          // CK033
  kLeftOut,            // CK034
  kUnsafeObjects,      // CK035
  kNoIndex,            // CK036
  kBadPointer,         // CK040
  kBadChecksum,        // CK041
  kUnreadableFile,     // CK042
  kSealDifference,     // CK043
  kBadSeal,            // CK044
  kUncheckedBytes,     // CK045
  kDifferentCopies,    // CK046
  kDiffersFromReport,  // CK047
  kOnOneSide,          // CK048
  kUnreadableBytes,    // CK049
  kRelatedState,       // CK050
  kDamagedRelated,     // CK051
  kRelatedLeftBehind,  // CK052
  kSalvageLoss,        // CK053
  // Particular formats and frameworks.
  kUnknownTensorClass,  // CK060
  kTensorAttributes,    // CK061
  kMissingScale,        // CK062
  kUsedPadding,         // CK065
  kRanksDisagree,       // CK066
  kOtherRanksFile,      // CK067
  kRankEntries,         // CK070
  kUnnamedFlat,         // CK071
  kUnfittingIds,        // CK072
  kNamesFromFile,       // CK073
  kFlatNotRestored,     // CK074
  kUnsureOptimizer,     // CK075
  kExternalLink,        // CK080
  kSecondName,          // CK081
  kNoValue,             // CK082
  kUnreadableDataset,   // CK083
  kUnsupportedDataset,  // CK084
  kUnfinished,          // CK090
  kBucketsKept,         // CK091
  kRawBfloat16,         // CK092
  kMissingOnRank,       // CK093
  kUnmatchedIds,        // CK094
  kUnmatchedBuckets,    // CK095
  kIntegrity,           // CK096
  kAssumedPlain,        // CK097
  kUncomparedReplicas,  // CK098
  kUnnamedState,        // CK099
  kNoCutPatterns,       // CK100
  kNotCompared,         // CK104
  kOtherFiles,          // CK110
  // The state of an optimizer, and values.
  kNoOptimizer,          // OP000
  kIncompleteState,      // OP001
  kNoState,              // OP002
  kStateShape,           // OP003
  kStepDiffers,          // OP004
  kGroupStep,            // OP005
  kNegativeSquare,       // OP006
  kNotFinite,            // OP007
  kZeroMoment,           // OP008
  kZeroStep,             // OP009
  kUnknownMember,        // OP010
  kDuplicateMember,      // OP011
  kUnmappedId,           // OP012
  kAmbiguousIds,         // OP013
  kUngrouped,            // OP014
  kUnlistedWeights,      // OP015
  kMissingOption,        // OP016
  kMomentWithoutSquare,  // OP017
  kMasterDiffers,        // OP018
  kMasterAlone,          // OP019
  kOutlier,              // OP020
  kNaN,                  // ST001
  kInf,                  // ST002
  kAllZero,              // ST003
  kConstant,             // ST004
  // A run over time.
  kNewestWhole,           // AU001
  kNoneWhole,             // AU002
  kDamagedCheckpoint,     // AU003
  kPointerAstray,         // AU004
  kPointerBehind,         // AU005
  kPartsMissing,          // AU006
  kContentUnchanged,      // AU010
  kSteppedBack,           // AU011
  kStepNotOfName,         // AU012
  kOptimizerStepDiffers,  // AU013
  kOptimizerMissing,      // AU020
  kStateLost,             // AU021
  kOptimizerRestarted,    // AU022
  kMomentsReset,          // AU023
  kNeverMoved,            // AU030
  kReinitialized,         // AU031
  kLooksFresh,            // AU032
  kNonFiniteOnset,        // AU040
  kSpike,                 // AU041
  kReplicasDrifted,       // AU050
  kTiesApart,             // AU060
  kTiedTrainedApart,      // AU061
  kRetention,             // AU070
  kLeftover,              // AU071
};

struct FindingInfo {
  Finding finding = Finding::kNone;
  std::string_view code;  // as printed: "CK011"; "" for kNone
  Severity severity = Severity::kInfo;
  std::string_view severities;  // in words, where it has several: "error, warning elsewhere"
  std::string_view level;       // the first level of verify that reports it: "quick" or "full"; of
                                // audit: "metadata" or "deep"; else who reports it: "(conversion)",
                                // "(all commands)"; "" for optim
  std::string_view meaning;     // one sentence without a full stop; Markdown
  std::string_view names;       // which fields of the note are set: "file, tensor"
  std::string_view cause;       // what usually causes it; sentences
  std::string_view cure;        // what to do about it; sentences
};

/// Every row, in the order of the enum.
std::span<const FindingInfo> all_findings();
const FindingInfo& finding_info(Finding finding);

/// The code as it is printed: "CK011"; "" for kNone.
std::string_view code_text(Finding finding);

/// The finding with this code; nullopt for an unknown one. Upper and lower case are the same.
std::optional<Finding> find_finding(std::string_view code);

}  // namespace tessera
