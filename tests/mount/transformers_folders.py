"""Folders of models that transformers and diffusers write, and whether they load others as they load these.

    transformers_folders.py write DIRECTORY     folders of a tiny Llama, of one with tied embeddings, and of others
    transformers_folders.py load A B            prints whether the folders A and B are the same model, which computes
                                                the same, and what is missing
"""

import json
import os
import shutil
import sys

import diffusers
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)

UNET = dict(
    sample_size=8,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    block_out_channels=(8, 16),
    layers_per_block=1,
    cross_attention_dim=16,
    norm_num_groups=4,
    attention_head_dim=4,
)


def families():
    """Tiny random models of other architectures, by name."""
    for name, sizes in {
        "Qwen3ForCausalLM": dict(head_dim=8),
        "Gemma2ForCausalLM": dict(head_dim=8),
        "MixtralForCausalLM": dict(num_local_experts=4),
        "BertForMaskedLM": {},
    }.items():
        made = getattr(transformers, name)
        yield name, made(made.config_class(**SIZES, **sizes))
    t5 = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    yield "T5ForConditionalGeneration", transformers.T5ForConditionalGeneration(t5)
    yield "UNet2DConditionModel", diffusers.UNet2DConditionModel(**UNET)


def write(directory):
    os.chdir(directory)
    torch.manual_seed(0)
    for name, model in families():
        model.save_pretrained(name)
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


def class_of(folder):
    """The class of the model in a folder."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    name = config.get("_class_name") or config["architectures"][0]
    return getattr(diffusers if "_class_name" in config else transformers, name)


def outputs(model):
    """What a model computes from the same input."""
    ids = torch.arange(12)[None]
    with torch.no_grad():
        if isinstance(model, diffusers.UNet2DConditionModel):
            return model.eval()(torch.ones(1, 4, 8, 8), 3, torch.ones(1, 5, 16)).sample
        decoded = dict(decoder_input_ids=ids) if model.config.is_encoder_decoder else {}
        return model.eval()(ids, **decoded).logits


def load(a, b):
    (a, found), b = class_of(a).from_pretrained(a, output_loading_info=True), class_of(b).from_pretrained(b)
    same = torch.equal(outputs(a), outputs(b))
    a, b = a.state_dict(), b.state_dict()
    same = same and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    print(same, {key: sorted(map(str, value)) for key, value in found.items() if value})


if __name__ == "__main__":
    {"write": write, "load": load}[sys.argv[1]](*sys.argv[2:])
