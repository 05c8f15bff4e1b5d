#pragma once
// What a conversion was asked to do, resolved: formats, paths, one file or a folder, and the
// identity that --resume goes by.
#include <tessera/ops/convert.h>

#include <string>

namespace tessera {

/// The driver to write with, and `request` completed: single_file, file_stem, hf_preset and its
/// defaults. Throws kInvalidArgument (unknown id; suffix and --to disagree), kUnsupported (a format
/// that is only read; many ranks in a one-rank format).
const FormatDriver& resolve_target(const ConvertOptions& options, std::string_view source_format,
                                   TargetRequest& request);

/// Writing ranks that the request asks for: a dim of model chunks is no dim of ranks.
std::int64_t writing_ranks(const FormatDriver& driver, const TargetRequest& request);

/// Absolute, without links; the last components may be absent: make_parents() makes those above it.
/// Throws kNotFound where the folder above is a link to nothing, kInvalidArgument for ".." in what
/// is absent.
std::string resolve_destination(const FileSystem& fs, const std::string& destination);

/// Makes the folders above `destination` that do not exist. They stay, should the run fail.
void make_parents(FileSystem& fs, const std::string& destination);
/// The nearest folder above `path` that exists.
std::string existing_parent(const FileSystem& fs, const std::string& path);

/// Throws kInvalidArgument when one path is, or lies inside, the other.
void check_apart(const std::string& source, const std::string& destination,
                 std::string_view called = "SRC");

/// Throws kInvalidArgument when DST is, or holds, a file that SRC is made of: the source of a
/// virtual dataset beside the file that names it.
void check_not_a_part(const FileSystem& fs, const OpenedCheckpoint& source,
                      const std::string& destination);

/// --force replaces an empty folder, a checkpoint (damaged ones too) or a file, and nothing else:
/// throws kInvalidArgument for a folder that holds something no format recognises.
void check_replaceable(const FileSystem& fs, const std::string& destination);

/// 16 hex digits over everything the user asked for: names the stage.
std::string request_hash(const FileSystem& fs, const ConvertOptions& options,
                         const std::string& destination);
/// 64 hex digits over the times of the source's files: processes that see others see other sources.
std::string times_hash(const Manifest& source);

/// request_hash, then 64 hex digits over it, the source's files (path, size) and the output plan.
/// Whether the files are the same ones is SourceBinding's question.
/// `content`: what else distinguishes the result from others of equal sizes.
std::string plan_hash(const std::string& request, const Manifest& source, const OutputPlan& output,
                      const std::string& content);

}  // namespace tessera
