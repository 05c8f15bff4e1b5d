"""Folders of Hugging Face's Trainer: tiny models, random weights, CPU.

    python trainer_cases.py [root]
torch 2.13.0, transformers 5.24.0, accelerate 1.15.0, peft 0.21.2. `param_id_to_fqn` is what the live optimizer says: its groups
hold the very parameters that the model names.
"""
import glob, os, shutil, sys
import torch
import transformers, peft
from safetensors.torch import load_file
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          Trainer, TrainingArguments, set_seed)
from common import *


class Tokens(torch.utils.data.Dataset):
    def __init__(self, labels):
        draw = torch.Generator().manual_seed(3)
        self.ids = torch.randint(0, 40, (8, 6), generator=draw)
        self.labels = (lambda i: int(i % 2)) if labels == "class" else (lambda i: self.ids[i])

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels(i)}


def llama():
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=False))


def bert():
    return BertForSequenceClassification(BertConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                                    num_attention_heads=2, max_position_embeddings=16))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0))


def adapter():
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(llama(), lora)


def stored_name(name):
    return name.replace(".default.", ".")  # an adapter's name is left out where it is saved


def run(root, case_name, make, labels, notes, shard=None, **asked):
    case = fresh_case(root, "hf-trainer", case_name)
    set_seed(7)
    model = make()
    if shard:
        save = type(model).save_pretrained
        model.save_pretrained = lambda *a, **k: save(model, *a, max_shard_size=shard, **k)
    with inside(case):
        args = TrainingArguments(output_dir="run", max_steps=2, save_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
                                 weight_decay=0.1, learning_rate=0.01, logging_strategy="no", disable_tqdm=True, seed=7, **asked)
        trainer = Trainer(model, args, train_dataset=Tokens(labels))
        trainer.train()
        os.rename("run/checkpoint-2", "checkpoint")
        shutil.rmtree("run")
        if os.path.exists("checkpoint/README.md"):
            os.remove("checkpoint/README.md")  # an adapter's model card
        weights = {}
        for file in sorted(glob.glob("checkpoint/*.safetensors")):
            weights.update(load_file(file))
        optimizer = torch.load("checkpoint/optimizer.pt", weights_only=True)
        state = {"model": weights, "optimizer": optimizer, "scheduler": torch.load("checkpoint/scheduler.pt", weights_only=True)}
        # The live optimizer names its ids; what was saved for an id is what it holds for that parameter.
        live = trainer.optimizer.optimizer
        names = {id(p): stored_name(n) for n, p in trainer.model.named_parameters()}
        ordered = [p for group in live.param_groups for p in group["params"]]
        ids = {str(i): names[id(p)] for i, p in enumerate(ordered)}
        for i, p in enumerate(ordered):
            for leaf, value in live.state[p].items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(optimizer["state"][i][leaf])), (i, leaf)
        assert set(ids.values()) <= set(weights), set(ids.values()) - set(weights)
    write_expected(case, "hf-trainer", "transformers", transformers.__version__, flatten(state), notes=notes, param_id_to_fqn=ids,
                   torch_version=torch.__version__.split("+")[0])


def main(root):
    run(root, "llama_adamw", llama, "next", "model.safetensors and what Trainer saves beside it")
    run(root, "bert_shards", bert, "class", "a sharded model, biases and LayerNorms in the group without decay", shard="8KB")
    run(root, "gpt2_tied", gpt2, "next", "tied weights, LayerNorms called ln_1")
    run(root, "llama_lora", adapter, "next", "an adapter of PEFT: the base model is not in the folder")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT))
