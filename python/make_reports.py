#!/usr/bin/env python3
"""Makes python/tessera/reports.py from docs/json/*.schema.json.   make_reports.py [--check]

--check: exits 1 where the file is not what the schemas make."""

import json
import keyword
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "python" / "tessera" / "reports.py"
REPORTS = ["summary", "run", "ls", "show", "stat", "optim", "hash", "verify", "scan", "diff", "convert", "plan", "path",
           "explain", "report", "audit", "trend"]
HEAD = '''"""The commands' JSON documents as dataclasses. Made by make_reports.py from docs/json; do not edit.

Every report keeps the document that it was made of in `document`, and its fields have the document's names (`from` is
`from_`). A field that a document may lack is None there."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar


class _Row:
    """Fields of a JSON object."""

    _parts: ClassVar[dict[str, type]] = {}

    @classmethod
    def of(cls, document):
        known = {field.name: document.get(field.name.rstrip("_")) for field in dataclasses.fields(cls)
                 if field.name != "document"}
        for name, part in cls._parts.items():
            value = known[name]
            if isinstance(value, list):
                known[name] = [part.of(each) if isinstance(each, dict) else each for each in value]
            elif isinstance(value, dict):
                known[name] = part.of(value)
        return cls(**known)


class _Report(_Row):
    document: dict

    @classmethod
    def of(cls, document):
        report = super().of(document)
        object.__setattr__(report, "document", document)
        return report
'''
TAIL = '''

def read_report(document):
    """The report of a JSON document that a command printed."""
    schema = document.get("schema")
    name = str(schema).rpartition("/")[0]
    if name not in _REPORTS:
        raise ValueError(f"{schema!r} is no report that this version knows")
    return _REPORTS[name].of(document)
'''
HASH_EQUALITY = '''
    def __eq__(self, other):
        """Whether the content is the same: tensors and values, not paths and formats."""
        if not isinstance(other, HashReport):
            return NotImplemented
        return (self.root, self.values_root) == (other.root, other.values_root)

    def __hash__(self):
        return hash((self.root, self.values_root))
'''
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "array": "list",
           "object": "dict[str, Any]"}


def camel(name):
    return "".join(part.capitalize() for part in name.split("_"))


def singular(name):
    return {"entries": "entry", "leaves": "leaf"}.get(name, name[:-1] if name.endswith("s") else name)


class Maker:
    def __init__(self):
        self.classes = {}  # name -> source
        self.reports = {}

    def resolve(self, schema, root):
        return root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def annotation(self, schema, root, prefix, name):
        """(annotation, class of its rows or None)"""
        shared = schema["$ref"].rpartition("/")[2] if "$ref" in schema else None
        schema = self.resolve(schema, root)
        if "enum" in schema:
            kinds = {"None" if each is None else type(each).__name__ for each in schema["enum"]}
            return " | ".join(sorted(kinds, key=lambda kind: kind == "None")), None
        types = schema.get("type")
        types = types if isinstance(types, list) else [types]
        if types == [None]:
            return "Any", None
        made, out = None, []
        for kind in types:
            if kind == "array" and "items" in schema:
                inner, made = self.annotation(schema["items"], root, prefix, singular(name))
                out.append(f"list[{inner}]")
            elif kind == "object" and schema.get("properties"):
                made = "Note" if shared == "note" else prefix + camel(shared or name)
                self.make(made, schema, root, prefix)
                out.append(made)
            else:
                out.append(SCALARS[kind])
        return " | ".join(out), made

    def make(self, cls, schema, root, prefix, is_report=False):
        if cls in self.classes:
            return
        self.classes[cls] = ""  # a schema that refers to itself
        required = set(schema.get("required", ()))
        lines, parts = [], {}
        properties = schema["properties"]
        for name in [n for n in properties if n in required] + [n for n in properties if n not in required]:
            if is_report and name == "schema":
                continue
            field = name + "_" if keyword.iskeyword(name) else name
            if field in ("of", "document"):
                sys.exit(f"{cls}: a report has a member \"{field}\" of its own; name the field otherwise")
            text, made = self.annotation(properties[name], root, prefix, name)
            if made:
                parts[field] = made
            if name not in required:
                text += "" if text.endswith("None") or text == "Any" else " | None"
                text += " = None"
            note = self.resolve(properties[name], root).get("description") or properties[name].get("description")
            lines.append(f"    {field}: {text}" + (f"  # {' '.join(note.split())}" if note else ""))
        base = "_Report" if is_report else "_Row"
        equality = HASH_EQUALITY if cls == "HashReport" else ""
        options = "frozen=True, eq=False" if equality else "frozen=True"
        source = f"\n\n@dataclasses.dataclass({options})\nclass {cls}({base}):\n"
        if is_report:
            source += f'    """{schema["title"]}: {self.schema_id(schema)}"""\n\n'
        source += "\n".join(lines) + "\n" + equality
        if parts:
            rows = ", ".join(f'"{field}": {made}' for field, made in parts.items())
            source += f"\n\n{cls}._parts = {{{rows}}}\n"
        del self.classes[cls]
        self.classes[cls] = source  # after the classes that it names
        if is_report:
            self.reports[self.schema_id(schema).rpartition("/")[0]] = cls

    @staticmethod
    def schema_id(schema):
        return schema["properties"]["schema"]["const"]


def main():
    maker = Maker()
    for name in REPORTS:
        schema = json.loads((ROOT / "docs" / "json" / f"{name}.schema.json").read_text())
        maker.make("PageReport" if name == "report" else camel(name) + "Report", schema, schema, camel(name), is_report=True)
    rows = "".join(f'            "{schema}": {cls},\n' for schema, cls in maker.reports.items())
    text = HEAD + "".join(maker.classes.values()) + "\n\n_REPORTS = {\n" + rows.replace("            ", "    ") + "}\n" + TAIL
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            sys.exit("python/tessera/reports.py is not what docs/json makes: run python/make_reports.py")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
