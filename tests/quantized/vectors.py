"""Writes quantized tensors and the float32 numbers that the libraries of their schemes make of them.

    python tests/quantized/vectors.py FILE [SEED] [--large]

FILE is a safetensors file. The stored tensors of a case are called CASE/stored/NAME, and the numbers CASE/expected/NAME.
The metadata lists the cases. The codes are random: every code occurs. `--large` adds larger cases.

`scripts/oracles` installs the packages. `formulas.py FILE` compares the numbers with the formulas in NumPy.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from random_vectors import Random, ct_config, exl2_tensors
from safetensors.torch import save_file

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
FP8 = torch.float8_e4m3fn
CASES = []
TENSORS = {}


def case(name, tensors, expected, oracle, config=None, other=None, zero_sign=True, large=False):
    """`zero_sign` is False where the library gives +0 for the code of -0."""
    if large and not LARGE:
        return
    assert not any(case["name"] == name for case in CASES), name
    for key, value in tensors.items():
        TENSORS[f"{name}/stored/{key}"] = value.contiguous().clone()
    for key, value in expected.items():
        TENSORS[f"{name}/expected/{key}"] = value.to(F32).contiguous().clone()
    CASES.append({"name": name, "oracle": oracle, "config": config, "other": other, "zero_sign": zero_sign})


# Random data.


def codes(*shape):
    return torch.randint(0, 256, shape, generator=GENERATOR, dtype=torch.uint8)


def fp8(*shape, dtype=FP8):
    return codes(*shape).view(dtype)


def words(*shape):
    return torch.randint(-(2**31), 2**31, shape, generator=GENERATOR, dtype=torch.int32)


def scales(*shape, dtype=F32):
    values = torch.rand(shape, generator=GENERATOR) * 0.02 + 1e-4
    return values.to(dtype)


def weights(*shape):
    return torch.randn(shape, generator=GENERATOR)


def exponents(*shape):
    """E8M0 without the code of NaN, for which libraries differ; with the smallest and the largest number."""
    values = torch.randint(110, 140, shape, generator=GENERATOR, dtype=torch.uint8)
    flat = values.view(-1)
    flat[0], flat[1], flat[2] = 0, 1, 254
    return values


def text(value):
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


# compressed-tensors.


def scheme(**weights):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def widened(tensors):
    return {key: value.to(F32) if value.dtype in (BF16, F16) else value for key, value in tensors.items()}


def ct_fp8_blocks(name, shape, block, scale_dtype, **more):
    from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer

    grid = [-(-dim // size) for dim, size in zip(shape, block)]
    if scale_dtype == "E8M0":
        stored = torch.randint(110, 140, grid, generator=GENERATOR, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    else:
        stored = scales(*grid, dtype=scale_dtype)
    weight = fp8(*shape)
    converter = FP8BlockDequantizer(targets=["re:.*"], weight_block_size=block, dtype=F32)
    result = converter.process({"m.weight": weight.clone(), "m.weight_scale_inv": stored.to(F32)})
    suffix = ".scale" if scale_dtype == "E8M0" else ".weight_scale_inv"
    case(
        name,
        {"m.weight": weight, f"m{suffix}": stored},
        {"m.weight": result["m.weight"]},
        "compressed-tensors FP8BlockDequantizer",
        {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)}},
        **more,
    )


def ct_float():
    from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor as Compressor

    for strategy, shape, dtype, more in [
        ("tensor", [1], F32, {}),
        ("channel", [48, 1], BF16, {}),
        ("block", [3, 2], F32, {"block_structure": [20, 16]}),
    ]:
        args = dict(num_bits=8, type="float", strategy=strategy, symmetric=True, **more)
        stored = {"weight": fp8(48, 25), "weight_scale": scales(*shape, dtype=dtype)}
        result = Compressor.decompress(widened(stored), scheme(**args))["weight"]
        tensors = {f"m.{key}": value for key, value in stored.items()}
        tensors["m.input_scale"] = scales(1)
        case(f"ct_float_{strategy}", tensors, {"m.weight": result}, "compressed-tensors FloatQuantizationCompressor",
             ct_config("float-quantized", **args))


def ct_int8():
    from compressed_tensors.compressors.naive_quantized.base import IntQuantizationCompressor as Compressor

    for strategy, shape, dtype, symmetric, more in [
        ("tensor", [1], F32, True, {}),
        ("channel", [48, 1], BF16, True, {}),
        ("channel", [48, 1], F16, False, {}),
        ("group", [48, 4], BF16, False, {"group_size": 16}),
    ]:
        args = dict(num_bits=8, type="int", strategy=strategy, symmetric=symmetric, **more)
        stored = {"weight": codes(48, 64).view(torch.int8), "weight_scale": scales(*shape, dtype=dtype)}
        if not symmetric:
            stored["weight_zero_point"] = codes(*shape).view(torch.int8)
        result = Compressor.decompress(widened(stored), scheme(**args))["weight"]
        case(f"ct_int8_{strategy}{'' if symmetric else '_asymmetric'}",
             {f"m.{key}": value for key, value in stored.items()}, {"m.weight": result},
             "compressed-tensors IntQuantizationCompressor", ct_config("int-quantized", **args))


def ct_packed():
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor as Compressor

    def one(name, bits, rows, cols, group, symmetric, dtype, **more):
        strategy = {"group_size": group, "strategy": "group"} if group else {"strategy": "channel"}
        args = dict(num_bits=bits, type="int", symmetric=symmetric, **strategy)
        count = cols // group if group else 1
        half = 2 ** (bits - 1)
        stored = {"weight": weights(rows, cols), "weight_scale": (scales(rows, count) * 80 / half).to(dtype)}
        if not symmetric:
            zeros = torch.randint(-half, half, (rows, count), generator=GENERATOR, dtype=torch.int8)
            zeros.view(-1)[0], zeros.view(-1)[1] = -half, half - 1
            stored["weight_zero_point"] = zeros
        compressed = Compressor.compress(widened(stored), scheme(**args))
        compressed["weight_scale"] = stored["weight_scale"]
        result = Compressor.decompress(widened(compressed), scheme(**args))["weight"]
        compressed["weight_shape"] = compressed["weight_shape"].to(torch.int64)
        case(name, {f"m.{key}": value for key, value in compressed.items()}, {"m.weight": result},
             "compressed-tensors PackedQuantizationCompressor", ct_config("pack-quantized", **args), **more)

    one("ct_packed_4_group", 4, 24, 128, 32, True, BF16)
    one("ct_packed_4_channel_ragged", 4, 19, 75, None, True, F32)
    one("ct_packed_4_asymmetric", 4, 27, 96, 32, False, F16)
    one("ct_packed_8_asymmetric", 8, 13, 64, 16, False, BF16)
    one("ct_packed_8_channel_asymmetric", 8, 13, 50, None, False, BF16)
    for bits in [2, 3, 5, 6, 7]:
        one(f"ct_packed_{bits}_group", bits, 21, 160, 32, True, BF16)
    one("ct_packed_3_asymmetric", 3, 37, 96, 32, False, BF16)
    one("ct_packed_4_large", 4, 512, 2048, 128, True, BF16, large=True)

    # Words of versions before 0.18, and a group index. The library of today writes and reads neither.
    for bits in [3, 5, 6, 7]:
        rows, cols, per = 11, 96, 32 // bits
        integers = torch.randint(0, 2**bits, (rows, cols), generator=GENERATOR)
        padded = torch.nn.functional.pad(integers, (0, -cols % per)).view(rows, -1, per)
        packed = (padded << (torch.arange(per) * bits)).sum(-1).to(torch.int32)
        scale = scales(rows, 1)
        result = (integers - 2 ** (bits - 1)).to(F32) * scale
        case(f"ct_packed_{bits}_words", {"m.weight_packed": packed, "m.weight_scale": scale,
             "m.weight_shape": torch.tensor([rows, cols])}, {"m.weight": result}, "formula",
             ct_config("pack-quantized", num_bits=bits, type="int", strategy="channel", symmetric=True))
    for name, index in [
        ("ct_packed_index", torch.randperm(96, generator=GENERATOR).to(torch.int32) // 32),
        ("ct_packed_index_ignored", torch.full((96,), -1, dtype=torch.int32)),
    ]:
        stored = words(10, 12)
        integers = ((stored.unsqueeze(-1) >> (torch.arange(8) * 4)) & 15).view(10, 96)
        scale = scales(10, 3, dtype=BF16)
        groups = index if index[0] >= 0 else torch.arange(96) // 32
        result = (integers - 8).to(F32) * scale.to(F32)[:, groups.long()]
        case(name, {"m.weight_packed": stored, "m.weight_scale": scale, "m.weight_shape": torch.tensor([10, 96]),
             "m.weight_g_idx": index}, {"m.weight": result}, "formula",
             ct_config("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=True))


def ct_fp4():
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward_helpers import _dequantize

    def unpacked(packed):
        return unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=F32)

    packed, scale, whole = codes(24, 40), fp8(24, 5), torch.tensor([431.7])
    expanded = scale.to(F32).repeat_interleave(16, 1)
    case("ct_nvfp4", {"m.weight_packed": packed, "m.weight_scale": scale, "m.weight_global_scale": whole,
         "m.input_global_scale": scales(1)}, {"m.weight": _dequantize(unpacked(packed), expanded, global_scale=whole)},
         "compressed-tensors _dequantize", ct_config("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16))
    # The same as two codes of PyTorch's type of 4 bits.
    case("f4_nvfp4", {"m.weight": packed.view(torch.float4_e2m1fn_x2), "m.weight_scale": scale,
         "m.weight_scale_2": whole}, {"m.weight": unpacked(packed) * (expanded * whole)}, "compressed-tensors, formula")
    packed, scale = codes(24, 64), exponents(24, 4)
    expanded = decompress_mx_scale(scale).to(F32).repeat_interleave(32, 1)
    case("ct_mxfp4", {"m.weight_packed": packed, "m.weight_scale": scale},
         {"m.weight": _dequantize(unpacked(packed), expanded)}, "compressed-tensors _dequantize",
         ct_config("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32))
    case("modelopt_mxfp4", {"m.weight": packed, "m.weight_scale": scale},
         {"m.weight": _dequantize(unpacked(packed), expanded)}, "compressed-tensors _dequantize",
         other={"quantization": {"quant_algo": "W4A8_MXFP4_FP8", "group_size": 32}})
    weight, scale = fp8(24, 64), exponents(24, 2)
    expanded = decompress_mx_scale(scale).to(F32).repeat_interleave(32, 1)
    config = ct_config("mxfp8-quantized", num_bits=8, type="float", group_size=32)
    case("ct_mxfp8", {"m.weight": weight, "m.weight_scale": scale},
         {"m.weight": _dequantize(weight, expanded)}, "compressed-tensors _dequantize", config)


# transformers.


def gpt_oss():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scale = codes(3, 10, 2, 16), exponents(3, 10, 2)
    # The library returns the transpose.
    result = convert_moe_packed_tensors(blocks, scale, dtype=F32).transpose(1, 2)
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    case("gpt_oss", {"e.down_proj_blocks": blocks, "e.down_proj_scales": scale, "e.down_proj_bias": weights(3, 10)},
         {"e.down_proj": result}, "transformers convert_moe_packed_tensors", config)
    case("gpt_oss_original", {"block.0.mlp.mlp1_weight.blocks": blocks, "block.0.mlp.mlp1_weight.scales": scale},
         {"block.0.mlp.mlp1_weight": result}, "transformers convert_moe_packed_tensors")
    # The code of NaN, for which torch and transformers differ.
    scale = scale.clone()
    scale[0, 0, 0] = 255
    result = result.clone()
    result[0, 0, :32] = float("nan")
    case("gpt_oss_nan", {"e.down_proj_blocks": blocks, "e.down_proj_scales": scale}, {"e.down_proj": result},
         "transformers convert_moe_packed_tensors, with NaN for the code 255", config)


# NVIDIA ModelOpt.


def modelopt():
    from modelopt.torch.export.quant_utils import pack_int4_in_uint8
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    packed, scale, double = codes(20, 48), fp8(20, 6), torch.tensor(0.00731)
    result = NVFP4QTensor(torch.Size([20, 96]), F32, packed).dequantize(
        F32, scale=scale, double_scale=double, block_sizes={-1: 16})
    other = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    case("modelopt_nvfp4", {"m.weight": packed, "m.weight_scale": scale, "m.weight_scale_2": double,
         "m.input_scale": torch.tensor(0.5)}, {"m.weight": result}, "modelopt NVFP4QTensor", other=other,
         zero_sign=False)
    packed, scale, double = codes(3, 20, 48), fp8(3, 20, 6), torch.tensor(0.00731)
    result = NVFP4QTensor(torch.Size([3, 20, 96]), F32, packed).dequantize(
        F32, scale=scale, double_scale=double, block_sizes={-1: 16})
    case("modelopt_nvfp4_experts", {"m.weight": packed, "m.weight_scale": scale, "m.weight_scale_2": double},
         {"m.weight": result}, "modelopt NVFP4QTensor", other=other, zero_sign=False)
    # Packed along the rows; ModelOpt packs the transpose.
    values = NVFP4QTensor(torch.Size([3, 20, 96]), F32, packed).dequantize(
        F32, scale=scale, double_scale=double, block_sizes={-1: 16})
    case("modelopt_nvfp4_rows", {"e.gate_up_proj": packed.transpose(1, 2), "e.gate_up_proj_weight_scale":
         scale.transpose(1, 2), "e.gate_up_proj_weight_scale_2": double}, {"e.gate_up_proj": values.transpose(1, 2)},
         "modelopt NVFP4QTensor, transposed", other=other, zero_sign=False)

    weight, scale = fp8(64, 96), scales(2, 3)
    result = FP8QTensor(torch.Size([64, 96]), F32, weight).dequantize(F32, scale=scale, block_sizes={-1: 32, -2: 32})
    case("modelopt_fp8_blocks", {"m.weight": weight, "m.weight_scale": scale.view(2, 1, 3, 1)}, {"m.weight": result},
         "modelopt FP8QTensor", {"quantization_config": {"quant_method": "modelopt", "weight_block_size": [32, 32]}})
    scale = scales(64)
    result = FP8QTensor(torch.Size([64, 96]), F32, weight).dequantize(F32, scale=scale.view(64, 1))
    other = {"quantization": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}}
    case("modelopt_fp8_channel", {"m.weight": weight, "m.weight_scale": scale}, {"m.weight": result},
         "modelopt FP8QTensor", other=other)
    scale = torch.tensor(0.0123)
    result = FP8QTensor(torch.Size([64, 96]), F32, weight).dequantize(F32, scale=scale)
    case("modelopt_fp8", {"m.weight": weight, "m.weight_scale": scale, "m.input_scale": torch.tensor(2.0),
         "m.k_scale": torch.tensor(1.0)}, {"m.weight": result}, "modelopt FP8QTensor",
         other={"quantization": {"quant_algo": "FP8"}})

    for name, shape, dtype in [("modelopt_int4", [22, 96], BF16), ("modelopt_int4_experts", [3, 22, 96], F32)]:
        scale = scales(*shape[:-1], 3, dtype=dtype) * 16
        integers = torch.randint(-8, 8, shape, generator=GENERATOR)
        expanded = scale.to(F32).repeat_interleave(32, -1)
        values = integers.to(F32) * expanded
        packed = pack_int4_in_uint8(values, scale.to(F32), 32)
        case(name, {"m.weight": packed, "m.weight_scale": scale, "m.pre_quant_scale": scales(96)}, {"m.weight": values},
             "modelopt pack_int4_in_uint8, formula",
             other={"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 32}})


# ComfyUI.


def comfy():
    import comfy_kitchen
    from comfy_kitchen.tensor.fp8 import TensorCoreFP8Layout
    from comfy_kitchen.tensor.mxfp8 import TensorCoreMXFP8Layout
    from comfy_kitchen.tensor.nvfp4 import TensorCoreNVFP4Layout

    with comfy_kitchen.use_backend("eager"):
        for name, dtype, format in [("", FP8, "float8_e4m3fn"), ("_e5m2", torch.float8_e5m2, "float8_e5m2")]:
            weight, scale = fp8(24, 33, dtype=dtype), torch.tensor(0.017)
            params = TensorCoreFP8Layout.Params(scale=scale, orig_dtype=F32, orig_shape=(24, 33))
            result = TensorCoreFP8Layout.dequantize(weight, params)
            case(f"comfy_fp8{name}", {"m.weight": weight, "m.weight_scale": scale,
                 "m.comfy_quant": text({"format": format})}, {"m.weight": result}, "comfy-kitchen TensorCoreFP8Layout")
            case(f"comfy_fp8_old{name}", {"m.weight": weight, "m.scale_weight": scale, "m.scale_input": scale,
                 "scaled_fp8": torch.empty(0, dtype=dtype)}, {"m.weight": result}, "comfy-kitchen TensorCoreFP8Layout")
        for name, shape in [("", (144, 96)), ("_small", (16, 48))]:
            weight, params = TensorCoreNVFP4Layout.quantize(weights(*shape))
            params = TensorCoreNVFP4Layout.Params(
                scale=params.scale, block_scale=params.block_scale, orig_dtype=F32, orig_shape=shape)
            weight = codes(*weight.shape)
            result = TensorCoreNVFP4Layout.dequantize(weight, params)
            case(f"comfy_nvfp4{name}", {"m.weight": weight, "m.weight_scale": params.block_scale,
                 "m.weight_scale_2": params.scale, "m.comfy_quant": text({"format": "nvfp4"})}, {"m.weight": result},
                 "comfy-kitchen TensorCoreNVFP4Layout")
        weight, params = TensorCoreMXFP8Layout.quantize(weights(160, 96))
        params = TensorCoreMXFP8Layout.Params(scale=params.scale, orig_dtype=F32, orig_shape=(160, 96))
        result = TensorCoreMXFP8Layout.dequantize(weight, params)
        case("comfy_mxfp8", {"m.weight": weight, "m.weight_scale": params.scale.view(torch.uint8),
             "m.comfy_quant": text({"format": "mxfp8"})}, {"m.weight": result}, "comfy-kitchen TensorCoreMXFP8Layout")


# AWQ.


def awq():
    package = importlib.util.find_spec("awq").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("packing_utils", f"{package}/utils/packing_utils.py")
    packing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packing)
    for name, cols, rows, group, dtype, more in [
        ("awq", 96, 40, 32, F16, {}),
        ("awq_bf16", 64, 24, 64, BF16, {}),
        ("awq_large", 2048, 512, 128, F16, {"large": True}),
    ]:
        qweight, qzeros = words(cols, rows // 8), words(cols // group, rows // 8)
        scale = scales(cols // group, rows, dtype=dtype)
        result = packing.dequantize_gemm(qweight, qzeros, scale.to(F32), 4, group).T
        config = {"quantization_config": {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": group}}
        case(name, {"m.qweight": qweight, "m.qzeros": qzeros, "m.scales": scale}, {"m.weight": result},
             "autoawq dequantize_gemm", config, **more)


# GPTQ.


def gptqmodel():
    """`model_dequant` of GPTQModel without the package, which needs a GPU."""
    folder = str(Path(__file__).parents[2] / ".venv/gptqmodel-7.7.0/gptqmodel")

    def module(name, **attributes):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(attributes)

    import logging

    module("gptqmodel", __path__=[folder])
    module("gptqmodel.utils", __path__=[f"{folder}/utils"])
    module("gptqmodel.quantization", __path__=[f"{folder}/quantization"])
    module("gptqmodel.utils.logger", setup_logger=logging.getLogger)
    module("gptqmodel.utils.torch", HAS_NPU=False)
    import gptqmodel.utils.model_dequant as dequant

    return dequant


def gptq():
    dequant = gptqmodel()

    def one(name, bits, cols, rows, group, order, format, dtype, method=None, **more):
        count = cols // group
        tensors = {
            "m.qweight": words(cols * bits // 32, rows),
            "m.qzeros": words(count, rows * bits // 32),
            "m.scales": scales(count, rows, dtype=dtype),
            "m.g_idx": torch.arange(cols, dtype=torch.int32) // group,
            "m.bias": weights(rows),
        }
        # Fields of all ones and of all zeros.
        tensors["m.qzeros"][0, 0], tensors["m.qzeros"][-1, 0] = -1, 0
        if order:
            tensors["m.g_idx"] = tensors["m.g_idx"][torch.randperm(cols, generator=GENERATOR)]
        config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": False}
        if format:
            config["checkpoint_format"] = format
        path = OUT.with_suffix(".temporary")
        save_file(tensors, path)
        result = dequant.convert_gptq_file(path, F32, config, "cpu")["m.weight"]
        path.unlink()
        if method:
            del config["checkpoint_format"]
            config.update(method)
        if not order and bits != 3:
            del tensors["m.g_idx"]
        case(name, tensors, {"m.weight": result}, "GPTQModel convert_gptq_file", {"quantization_config": config}, **more)

    one("gptq_4", 4, 96, 40, 32, False, None, F16)
    one("gptq_4_order", 4, 96, 40, 32, True, "gptq", F16)
    one("gptq_4_v2", 4, 96, 40, 32, False, "gptq_v2", BF16)
    one("gptq_4_v2_order", 4, 96, 40, 16, True, "gptq_v2", F16)
    one("gptq_4_whole", 4, 64, 24, 64, False, "gptq", F16)
    for bits in [2, 3, 8]:
        one(f"gptq_{bits}", bits, 96, 64, 32, False, "gptq", F16)
        one(f"gptq_{bits}_order", bits, 96, 64, 32, True, "gptq_v2", F16)
    auto_round = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
    one("auto_round_gptq", 4, 64, 32, 32, False, "gptq", F16, auto_round)
    one("auto_round_plain", 4, 64, 32, 32, False, "gptq_v2", F16,
        {"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"})
    one("gptq_large", 4, 2048, 512, 128, False, "gptq", F16, large=True)
    one("gptq_large_order", 4, 2048, 512, 128, True, "gptq", F16, large=True)

    # DeepSeek-V4.
    packed, scale = codes(20, 48).view(torch.int8), torch.randint(
        110, 140, (20, 3), generator=GENERATOR, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    result = dequant.dequantize_deepseek_v4_fp4_expert(packed, scale, target_dtype=F32)
    case("deepseek_v4_experts", {"e.weight": packed, "e.scale": scale}, {"e.weight": result},
         "GPTQModel dequantize_deepseek_v4_fp4_expert",
         {"quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [128, 128]}},
         zero_sign=False)


# bitsandbytes.


def bitsandbytes():
    import bitsandbytes.functional as functional
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from bitsandbytes.utils import pack_dict_to_tensor

    def one(name, shape, kind, nested, storage=torch.uint8, blocksize=64):
        n = int(np.prod(shape))
        weight = weights(*shape)
        packed, state = functional.quantize_4bit(
            weight, blocksize=blocksize, compress_statistics=nested, quant_type=kind, quant_storage=storage)
        # Blocks run across rows; the compiled code for processors does not do that for all shapes.
        flat = codes(packed.numel() * packed.element_size())
        absmax = state.absmax
        if nested:
            # As in `dequantize_4bit`; the code without compiled parts, which can contract to one rounding.
            map2, scale2 = state.state2.code, state.state2.absmax
            blocks = torch.arange(absmax.numel()) // state.state2.blocksize
            absmax = map2[absmax.long()] * scale2[blocks] + state.offset
            theirs = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
            assert torch.equal(absmax, theirs), name
        result = _dequantize_4bit_compute(flat, absmax, state.code, blocksize, [n], F32).view(shape)
        stored = flat.view(storage).view(-1, 1) if storage != torch.uint8 else flat.view(-1, 1)
        tensors = {"m.weight": stored}
        for key, value in state.as_dict(packed=True).items():
            tensors[f"m.weight.{key}"] = value
        case(name, tensors, {"m.weight": result}, "bitsandbytes _dequantize_4bit_compute",
             {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}})

    one("bnb_nf4", (24, 40), "nf4", False)
    one("bnb_nf4_short_rows", (8, 32), "nf4", False)
    one("bnb_nf4_ragged", (7, 30), "nf4", False)
    one("bnb_nf4_nested", (160, 128), "nf4", True)
    one("bnb_nf4_nested_ragged", (163, 126), "nf4", True)
    one("bnb_fp4", (24, 40), "fp4", False)
    one("bnb_fp4_nested", (24, 40), "fp4", True)
    one("bnb_nf4_bf16_storage", (24, 40), "nf4", False, BF16)
    one("bnb_nf4_128", (24, 40), "nf4", False, torch.uint8, 128)

    weight, absmax = codes(24, 35).view(torch.int8), scales(24) * 100
    result = torch.ops.bitsandbytes.int8_vectorwise_dequant.default(weight, absmax)
    case("bnb_int8", {"m.weight": weight, "m.SCB": absmax, "m.weight_format": torch.tensor(0, dtype=torch.uint8)},
         {"m.weight": result}, "bitsandbytes int8_vectorwise_dequant",
         {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}})


# MLX.


def mlx():
    import mlx.core as mx

    def array(tensor):
        if tensor.dtype == BF16:
            return mx.array(tensor.to(F32).numpy()).astype(mx.bfloat16)
        return mx.array(tensor.numpy())

    for bits in [2, 3, 4, 5, 6, 8]:
        for group in [32, 64, 128]:
            dtype = {32: F16, 64: BF16, 128: F32}[group]
            cols = 256
            stored = words(12, cols * bits // 32).view(torch.uint32)
            scale, bias = scales(12, cols // group, dtype=dtype), (weights(12, cols // group) * 0.1).to(dtype)
            result = mx.dequantize(mx.array(stored.numpy()), array(scale.to(F32)), array(bias.to(F32)), group, bits)
            case(f"mlx_{bits}_{group}", {"m.weight": stored, "m.scales": scale, "m.biases": bias},
                 {"m.weight": torch.from_numpy(np.array(result))}, "mlx dequantize",
                 {"quantization": {"group_size": 64, "bits": 4, "m": {"group_size": group, "bits": bits}}})
    for mode, group, bits in [("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)]:
        stored = words(12, 96 * bits // 32).view(torch.uint32)
        scale = codes(12, 96 // group) if mode == "nvfp4" else exponents(12, 96 // group)
        scale[scale == 127 if mode == "nvfp4" else scale == 255] = 1
        result = mx.dequantize(mx.array(stored.numpy()), mx.array(scale.numpy()), None, group, bits, mode,
                               dtype=mx.float32)
        case(f"mlx_{mode}", {"m.weight": stored, "m.scales": scale}, {"m.weight": torch.from_numpy(np.array(result))},
             "mlx dequantize", {"quantization": {"group_size": group, "bits": bits, "mode": mode}})


# HQQ.


def hqq():
    from hqq.core.quantize import Quantizer
    from hqq.core.utils import encode_safetensor_type

    for bits, axis, size, dtype, view in [
        (8, 1, 64, F16, False), (6, 0, 32, F32, False), (5, 1, None, BF16, False), (4, 1, 64, F16, False),
        (4, 0, 64, BF16, True), (3, 1, 32, F32, False), (3, 0, 64, F16, False), (2, 1, 16, F16, True),
        (1.58, 1, 64, F32, False), (1, 0, 8, F16, False), (4, 0, None, F32, False),
    ]:
        stored, meta = Quantizer.quantize(
            weights(24, 128), nbits=bits, group_size=size, axis=axis, compute_dtype=dtype, view_as_float=view,
            device="cpu")
        for name in ["scale", "zero"]:
            meta[name] = meta[name].to(dtype)
        # In float32, as the scales were before they were stored.
        wide = {**meta, "compute_dtype": F32, "scale": meta["scale"].to(F32), "zero": meta["zero"].to(F32)}
        result = Quantizer.dequantize(stored, wide)
        tensors = {"m.W_q": stored, "m.bias": scales(24)}
        for key, value in meta.items():
            if value is not None:
                tensors[f"m.{key}"] = encode_safetensor_type(value)
        name = f"hqq_{bits}_axis{axis}_{size or 'channel'}{'_view' if view else ''}"
        case(name, tensors, {"m.weight": result}, "hqq Quantizer.dequantize", {"quantization_config": {
            "quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": bits, "group_size": size}}}})


# AQLM.


def aqlm():
    from aqlm.utils import _dequantize_weight, pack_int_data, unpack_int_data

    # Codebooks of 16 bits, the usual ones, have 1 MiB.
    for count, bits, height, width, large in [
        (1, 10, 1, 8, False), (2, 8, 1, 8, False), (4, 8, 1, 8, False), (1, 8, 2, 4, False), (1, 16, 1, 8, True),
    ]:
        numbers = torch.randint(0, 2**bits, (16 // height, 128 // width, count), generator=GENERATOR)
        codes = pack_int_data(numbers, bits)
        books = (torch.randn(count, 2**bits, height, width, generator=GENERATOR) * 0.1).to(F16)
        books.view(-1)[0] = -0.0
        scale = scales(16 // height, 1, 1, 1, dtype=F16)
        result = _dequantize_weight(unpack_int_data(codes, bits), books.to(F32), scale.to(F32))
        case(f"aqlm_{count}x{bits}_{height}x{width}", {"m.codes": codes, "m.codebooks": books, "m.scales": scale},
             {"m.weight": result}, "aqlm _dequantize_weight", {"quantization_config": {
                 "quant_method": "aqlm", "num_codebooks": count, "nbits_per_codebook": bits, "in_group_size": width,
                 "out_group_size": height}}, large=large)


# Formulas without a library that runs here.


def formulas():
    weight, scale = fp8(3, 20, 40), scales(3, 2, 3)
    expanded = scale.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, :20, :40]
    case("fp8_experts", {"e.gate_up_proj": weight, "e.gate_up_proj_scale_inv": scale},
         {"e.gate_up_proj": weight.to(F32) * expanded}, "formula",
         {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}})
    scale = scales(3, 1, 1)
    case("fp8_experts_tensor", {"e.gate_up_proj": weight, "e.gate_up_proj_scale": scale},
         {"e.gate_up_proj": weight.to(F32) * scale}, "formula", {"quantization_config": {"quant_method": "fp8"}})
    scale = scales(3, 1, 40)
    case("fp8_experts_columns", {"e.gate_up_proj": weight, "e.gate_up_proj_scale": scale},
         {"e.gate_up_proj": weight.to(F32) * scale}, "formula", {"quantization_config": {"quant_method": "fp8"}})
    weight, scale = fp8(20, 40), scales(2, 3)
    expanded = scale.repeat_interleave(16, 0).repeat_interleave(16, 1)[:20, :40]
    case("fp8_inverse", {"m.weight": weight, "m.weight_scale_inv": scale}, {"m.weight": weight.to(F32) / expanded},
         "formula", {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16],
                     "weight_scale_semantics": "inverse"}})
    for name, dtype in [("e4m3", torch.float8_e4m3fnuz), ("e5m2", torch.float8_e5m2fnuz)]:
        weight, scale = fp8(20, 40, dtype=dtype), scales(20, 1)
        case(f"fp8_{name}_fnuz", {"m.weight": weight, "m.weight_scale": scale}, {"m.weight": weight.to(F32) * scale},
             "formula")
    weight, scale = fp8(20, 40), scales(1)
    case("fp8_mistral", {"m.weight": weight, "m.qscale_weight": scale}, {"m.weight": weight.to(F32) * scale}, "formula")
    for name, shape, scale in [("fp8_empty", (0, 40), (1,)), ("fp8_empty_rows", (20, 0), (20, 1))]:
        case(name, {"m.weight": fp8(*shape), "m.weight_scale": scales(*scale)}, {"m.weight": torch.zeros(shape)},
             "formula")
    weight, scale = codes(20, 64).view(torch.int8), scales(20, 1)
    case("slm1_q8", {"m.weight": weight, "m.weight.slm_scale": scale}, {"m.weight": weight.to(F32) * scale}, "formula")
    weight, scale = codes(20, 32), scales(20, 2)
    signed = torch.stack([weight & 15, weight >> 4], -1).reshape(20, 64).to(F32)
    signed = torch.where(signed < 8, signed, signed - 16)
    case("slm1_q4", {"m.weight": weight, "m.weight.slm_scale": scale},
         {"m.weight": signed * scale.repeat_interleave(32, 1)}, "formula")
    # Infinite and subnormal products, and scales that are not numbers.
    weight, scale = fp8(8, 256), torch.tensor(
        [1e38, -1e38, 1e-44, 1e-38, float("inf"), float("nan"), 0.0, -0.0]).view(8, 1)
    case("fp8_extremes", {"m.weight": weight, "m.weight_scale": scale}, {"m.weight": weight.to(F32) * scale}, "formula")


# EXL2, whose kernels need a GPU: the arithmetic is that of float16 numbers in NumPy.


def exl2():
    r = Random(0, "small")
    for name, rows, cols, widths, is_permuted, size in [
        ("exl2_4", 64, 96, (4,), True, 4), ("exl2_mixed", 50, 300, (8, 6, 5, 4, 3, 2), True, 1),
        ("exl2_5_3", 32, 130, (5, 3), True, 2), ("exl2_plain", 33, 128, (6, 4), False, 1),
    ]:
        tensors = exl2_tensors(r, rows, cols, widths, is_permuted, size)
        # One of the groups has subnormal scales.
        tensors["m.q_scale_max"][1:2] = 3e-5
        t = {key.removeprefix("m."): tensor for key, tensor in tensors.items()}
        groups, result = t["q_groups"].reshape(-1, 2).tolist(), np.zeros((rows, cols), np.float16)
        for row in range(rows):
            numbers = []
            for at, (bits, start) in enumerate(groups):
                end = groups[at + 1][1] if at + 1 < len(groups) else len(t["q_weight"])
                column = int.from_bytes(t["q_weight"][start:end, row].tobytes(), "little")
                square = np.float16(((int(t["q_scale"][at, row // 8]) >> row % 8 * 4 & 15) + 1) ** 2)
                scale = square * (t["q_scale_max"][at] / np.float16(256))
                count = min((end - start) * 32 // bits, cols - len(numbers))
                codes = [column >> bits * code & 2**bits - 1 for code in range(count)]
                numbers += [np.float16(code - 2 ** (bits - 1)) * scale for code in codes]
            result[row] = np.array(numbers)[t.get("q_invperm", slice(None))]
        case(name, {key: torch.from_numpy(tensor) for key, tensor in tensors.items()},
             {"m.weight": torch.from_numpy(result)}, "formula", {"quantization_config": {"quant_method": "exl2"}})


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    LARGE = "--large" in sys.argv
    OUT = Path(arguments[0])
    GENERATOR = torch.Generator().manual_seed(int(arguments[1]) if len(arguments) > 1 else 0)
    torch.set_num_threads(1)
    ct_fp8_blocks("fp8_block", (192, 256), (128, 128), F32)
    ct_fp8_blocks("fp8_block_bf16", (72, 50), (32, 32), BF16)
    ct_fp8_blocks("fp8_block_e8m0", (72, 50), (32, 32), "E8M0")
    ct_fp8_blocks("fp8_block_large", (576, 300), (128, 128), F32, large=True)
    for function in [ct_float, ct_int8, ct_packed, ct_fp4, gpt_oss, modelopt, comfy, awq, gptq, bitsandbytes, mlx,
                     formulas, hqq, aqlm, exl2]:
        function()
    save_file(TENSORS, OUT, metadata={"cases": json.dumps(CASES)})
    print(len(CASES), "cases")
