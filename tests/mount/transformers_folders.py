"""Folders of models that transformers writes, and whether it loads others as it loads these.

    transformers_folders.py write DIRECTORY     folders of one tiny model, and of one with tied embeddings
    transformers_folders.py load A B            prints whether the folders A and B are the same model, and what is missing
"""

import json
import os
import shutil
import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SIZES = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)


def write(directory):
    os.chdir(directory)
    torch.manual_seed(0)
    for name, tied in ("plain", False), ("tied", True):
        model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))
        model.save_pretrained(name)
        model.config.save_pretrained(f"{name}-bin")
        torch.save(model.state_dict(), f"{name}-bin/pytorch_model.bin")
        model.config.save_pretrained(f"{name}-named")
        shutil.copy(f"{name}/model.safetensors", f"{name}-named/llama.safetensors")
        model.save_pretrained(f"{name}-sharded", max_shard_size="20KB")
        # transformers cannot read an index without metadata.
        shutil.copytree(f"{name}-sharded", f"{name}-bare")
        path = f"{name}-bare/model.safetensors.index.json"
        with open(path) as file:
            index = json.load(file)
        del index["metadata"]
        with open(path, "w") as file:
            json.dump(index, file)


def load(a, b):
    (a, found), b = AutoModelForCausalLM.from_pretrained(a, output_loading_info=True), AutoModelForCausalLM.from_pretrained(b)
    a, b = a.state_dict(), b.state_dict()
    same = a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    print(same, {key: sorted(map(str, value)) for key, value in found.items() if value})


if __name__ == "__main__":
    {"write": write, "load": load}[sys.argv[1]](*sys.argv[2:])
