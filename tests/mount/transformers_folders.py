"""Folders of models that transformers and diffusers write, and whether they load others as they load these.

    transformers_folders.py write DIRECTORY     folders of a tiny Llama, of one with tied embeddings, of others, and of
                                                quantized ones, each beside a folder with its numbers, and of a
                                                pipeline
    transformers_folders.py load A B DTYPE      prints whether the folders A and B, loaded in a dtype, are the same model
                                                or pipeline, which computes the same, and what is missing
"""

import json
import os
import shutil
import sys
from pathlib import Path

import diffusers
import numpy
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).parent.parent / "quantized"))
import formulas

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


def pipeline():
    """A tiny random pipeline of Stable Diffusion."""
    words = ["<|startoftext|>", "<|endoftext|>", "a", "b", "a</w>", "b</w>"]
    with open("vocab.json", "w") as file:
        json.dump({word: number for number, word in enumerate(words)}, file)
    with open("merges.txt", "w") as file:
        file.write("#version: 0.2\n")
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
    text = transformers.CLIPTextConfig(
        vocab_size=8, max_position_embeddings=12, bos_token_id=0, eos_token_id=1, pad_token_id=1, **sizes
    )
    return diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            block_out_channels=(4, 8),
            norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=transformers.CLIPTokenizer("vocab.json", "merges.txt", model_max_length=12),
        unet=diffusers.UNet2DConditionModel(**UNET),
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def words(random, rows, cols):
    return random.integers(-(2**31), 2**31, (rows, cols), numpy.int32)


def scales(random, rows, cols):
    return random.uniform(0.001, 0.01, (rows, cols)).astype(numpy.float32)


def fp8(random, rows, cols):
    """A scale for each block of 16 rows and columns."""
    return {
        "weight": random.standard_normal((rows, cols)).astype(formulas.E4M3),
        "weight_scale_inv": scales(random, rows // 16, cols // 16),
    }


def gptq(random, rows, cols):
    return {
        "qweight": words(random, cols // 8, rows),
        "qzeros": words(random, cols // 16, rows // 8),
        "scales": scales(random, cols // 16, rows).astype(numpy.float16),
        "g_idx": (numpy.arange(cols) // 16).astype(numpy.int32),
    }


def awq(random, rows, cols):
    return {
        "qweight": words(random, cols, rows // 8),
        "qzeros": words(random, cols // 16, rows // 8),
        "scales": scales(random, cols // 16, rows).astype(numpy.float16),
    }


def packed(random, rows, cols):
    return {
        "weight_packed": words(random, rows, cols // 8),
        "weight_scale": scales(random, rows, cols // 16),
        "weight_shape": numpy.array([rows, cols], numpy.int64),
    }


PACKED = dict(num_bits=4, type="int", strategy="group", group_size=16, symmetric=True)

# What makes the stored tensors of a matrix, what makes its numbers of them, and the configuration.
SCHEMES = {
    "fp8": (fp8, formulas.fp8, dict(quant_method="fp8", weight_block_size=[16, 16])),
    "gptq": (gptq, formulas.gptq, dict(quant_method="gptq", bits=4, group_size=16, desc_act=False)),
    "awq": (awq, formulas.awq, dict(quant_method="awq", version="gemm", bits=4, group_size=16, zero_point=True)),
    "compressed-tensors": (packed, formulas.packed, dict(
        quant_method="compressed-tensors", format="pack-quantized",
        config_groups={"group_0": {"targets": ["Linear"], "weights": PACKED}}, ignore=["lm_head"])),
}


def as_torch(array):
    if array.dtype == formulas.E4M3:
        return torch.from_numpy(array.view(numpy.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(numpy.ascontiguousarray(array))


def write_quantized(name):
    """A Llama whose matrices are quantized, except those of the embeddings, and a folder with their numbers."""
    make, formula, config = SCHEMES[name]
    random = numpy.random.default_rng(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, dtype="bfloat16")).bfloat16()
    stored, values = {}, model.state_dict()
    for key, value in values.items():
        if key.endswith("_proj.weight"):
            tensors = make(random, *value.shape)
            stored.update({key.removesuffix("weight") + suffix: as_torch(array) for suffix, array in tensors.items()})
            values[key] = as_torch(formula(tensors, config | PACKED if make is packed else config)).bfloat16()
        else:
            stored[key] = value.clone()
    model.load_state_dict(values)
    model.save_pretrained(f"{name}-numbers")
    os.mkdir(name)
    save_file(stored, f"{name}/model.safetensors", metadata={"format": "pt"})
    with open(f"{name}-numbers/config.json") as file:
        described = json.load(file) | {"quantization_config": config}
    with open(f"{name}/config.json", "w") as file:
        json.dump(described, file)


def write(directory):
    os.chdir(directory)
    torch.manual_seed(0)
    made = pipeline()
    made.save_pretrained("pipeline")
    made.save_pretrained("pipeline-fp16", variant="fp16")
    made.save_pretrained("pipeline-bin", safe_serialization=False)
    made.save_pretrained("pipeline-sharded", max_shard_size="20KB")
    for name, model in families():
        model.save_pretrained(name)
    for name in SCHEMES:
        write_quantized(name)
    for name, tied in ("plain", False), ("tied", True):
        model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))
        model.save_pretrained(name)
        model.config.save_pretrained(f"{name}-bin")
        torch.save(model.state_dict(), f"{name}-bin/pytorch_model.bin")
        model.config.save_pretrained(f"{name}-named")
        shutil.copy(f"{name}/model.safetensors", f"{name}-named/llama.safetensors")
        shutil.copytree(f"{name}-named", f"{name}-explicit")
        with open(f"{name}-explicit/config.json", "w") as file:
            json.dump(model.config.to_dict() | {"transformers_weights": "llama.safetensors"}, file)
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
            ones = [torch.ones(shape, dtype=model.dtype) for shape in ((1, 4, 8, 8), (1, 5, 16))]
            return model.eval()(ones[0], 3, ones[1]).sample
        decoded = dict(decoder_input_ids=ids) if model.config.is_encoder_decoder else {}
        return model.eval()(ids, **decoded).logits


def images(pipeline):
    """What a pipeline computes from the same noise."""
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.Generator().manual_seed(0)
    return torch.from_numpy(pipeline("a b", num_inference_steps=2, generator=noise, output_type="np").images)


def load_pipelines(a, b, dtype):
    options = {} if dtype == "auto" else {"torch_dtype": getattr(torch, dtype)}
    a, b = (diffusers.DiffusionPipeline.from_pretrained(folder, **options) for folder in (a, b))
    same = torch.equal(images(a), images(b)) and a.components.keys() == b.components.keys()
    parts = {name: part for name, part in b.components.items() if isinstance(part, torch.nn.Module)}
    for name, part in parts.items():
        found, expected = getattr(a, name).state_dict(), part.state_dict()
        same = same and found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)
    print(same, sorted(parts))


def load(a, b, dtype):
    if os.path.exists(os.path.join(b, "model_index.json")):
        return load_pipelines(a, b, dtype)
    # transformers takes the dtype of the folder; diffusers, float32.
    options = {} if dtype == "auto" else {"torch_dtype": getattr(torch, dtype)}
    of_a = options if class_of(a).__module__.startswith("diffusers") else {}
    (a, found) = class_of(a).from_pretrained(a, output_loading_info=True, **of_a)
    b = class_of(b).from_pretrained(b, **options)
    same = torch.equal(outputs(a), outputs(b))
    a, b = a.state_dict(), b.state_dict()
    same = same and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    print(same, {key: sorted(map(str, value)) for key, value in found.items() if value})


if __name__ == "__main__":
    {"write": write, "load": load}[sys.argv[1]](*sys.argv[2:])
