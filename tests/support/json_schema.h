#pragma once
// A validator for the part of JSON Schema that docs/json uses: type, const, enum, required,
// properties, additionalProperties, items, minimum, pattern (of hex digits), $ref to #/$defs. Any
// other keyword is an error of the schema, so that none can be written and ignored.
#include <tessera/state/value.h>

#include <string>
#include <vector>

namespace tessera::testing {

/// What is wrong, one line each with the place ("$.tensors[3].shape: ..."); empty: valid.
std::vector<std::string> schema_violations(const Value& schema, const Value& document);

/// Reads docs/json/<name>.schema.json.
Value published_schema(const std::string& name);

}  // namespace tessera::testing
