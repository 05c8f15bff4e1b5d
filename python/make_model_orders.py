#!/usr/bin/env python3
"""Writes lib/format/hf_trainer/model_orders.h: the order in which the modules of transformers' models register their children.

    python3 python/make_model_orders.py        needs torch and transformers 5.24.0; models are made on the meta device, without weights
"""
import os
import sys
import warnings

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

# Model types whose saved names are those of their modules (no conversion when they are saved).
TYPES = """llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 gpt2 gpt_neo gptj opt bloom falcon mpt stablelm starcoder2
cohere olmo olmo2 granite smollm3 glm glm4 bert roberta xlm-roberta distilbert electra deberta deberta-v2 albert camembert mpnet
modernbert bart mbart t5 mt5 pegasus marian whisper wav2vec2 hubert detr longformer mamba""".split()
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers")

HEAD = '''#pragma once
// The order in which the modules of transformers' models register their children, written by
// python/make_model_orders.py from transformers %s. A row: model types, and for each module (by
// the last word of its name, "" for the model itself) its children in that order; where classes of
// one type differ, lists stand side by side.
//
//   "module:child child,child child|module:child"
//
// `weight` before `bias` goes without saying.
#include <array>
#include <string_view>

namespace tessera::hf_trainer {

struct ModelOrder {
  std::string_view model_types;  // as config.json has them
  std::string_view children;
};

// clang-format off
inline constexpr std::array<ModelOrder, %d> kModelOrders = {{
%s
}};
// clang-format on

}  // namespace tessera::hf_trainer
'''


def is_part(a, b):
    rest = iter(b)
    return all(x in rest for x in a)


def contradicts(a, b):
    common = [x for x in a if x in b]
    return common != [x for x in b if x in common]


def small_config(model_type):
    config = CONFIG_MAPPING[model_type]()
    for key in LAYERS:
        if isinstance(getattr(config, key, None), int):
            setattr(config, key, 2)
    try:
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:2]
    except AttributeError:
        pass  # made of other fields
    return config


def classes_of(model_type):
    names = set()
    for attribute in dir(modeling_auto):
        if attribute.startswith("MODEL_") and attribute.endswith("MAPPING_NAMES"):
            found = getattr(modeling_auto, attribute).get(model_type) or ()
            names.update([found] if isinstance(found, str) else found)
    return [getattr(transformers, name) for name in sorted(names) if hasattr(transformers, name)]


def children_of(model):
    """{path of a module: its children in the order of named_parameters()}"""
    seen = {}
    for name, _ in model.named_parameters():
        words = name.split(".")
        for depth, word in enumerate(words):
            if not word.isdigit():
                found = seen.setdefault(tuple(words[:depth]), [])
                if word not in found:
                    found.append(word)
    return seen


def row(model_type):
    """None where classes of one type contradict each other."""
    lists = {}
    for cls in classes_of(model_type):
        try:
            with torch.device("meta"):
                model = cls(small_config(model_type))
        except Exception as error:  # needs another library, or a configuration of its own
            print("left out: %s: %s" % (cls.__name__, str(error).strip().split("\n")[0][:100]), file=sys.stderr)
            continue
        for path, children in children_of(model).items():
            key = next((word for word in reversed(path) if not word.isdigit()), "")
            known = lists.setdefault(key, [])
            if any(contradicts(children, other) for other in known):
                return None
            if not any(is_part(children, other) for other in known):
                known[:] = [other for other in known if not is_part(other, children)] + [children]
    rules = []
    for key, known in sorted(lists.items()):
        kept = [children for children in known if not set(children) <= {"weight", "bias"}]
        if kept:
            rules.append("%s:%s" % (key, ",".join(" ".join(children) for children in sorted(kept))))
    return "|".join(rules)


def quoted(text):
    lines, line = [], ""
    for word in text.replace("|", "|\0").replace(" ", " \0").replace(",", ",\0").split("\0"):
        if len(line) + len(word) > 84:
            lines.append(line)
            line = ""
        line += word
    return "\n     ".join('"%s"' % line for line in lines + [line])


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    types_of = {}
    for model_type in TYPES:
        rules = row(model_type)
        if rules:
            types_of.setdefault(rules, []).append(model_type)
    body = "\n".join('    {"%s",\n     %s},' % (" ".join(types), quoted(rules))
                     for rules, types in sorted(types_of.items(), key=lambda item: item[1]))
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "..", "lib", "format", "hf_trainer", "model_orders.h"), "w", encoding="utf-8") as out:
        out.write(HEAD % (transformers.__version__, len(types_of), body))


if __name__ == "__main__":
    main()
