"""Writes random quantized tensors and the float32 numbers that the formulas of their schemes make of them.

    python tests/quantized/random_vectors.py FILE SEED [--large]

FILE has the form that `vectors.py` describes. Every scheme occurs in many shapes: without rows, without columns, with
as few elements as it allows, and with more. `--large` adds shapes of some 100,000 elements. `formulas.py` has the
formulas. That of MLX is compared with `mx.dequantize` here, for each case.
"""

import json
import math
import sys

import mlx.core as mx
import numpy as np
from formulas import (
    BF16, E2M1, E4M3, E4M3_FNUZ, E5M2, E5M2_FNUZ, E8M0, F16, F32, HQQ_PACKINGS, difference, f32, numbers, write,
)

KINDS = ["no rows", "no columns", "least", "small", "small", "wide", "tall"]


class Random:
    """Random shapes of a kind, and random tensors."""

    def __init__(self, seed, kind):
        self.generator = np.random.default_rng(seed)
        self.kind = kind

    def below(self, end):
        return int(self.generator.integers(end))

    def pick(self, *items):
        return items[self.below(len(items))]

    def shape(self, below=1, beside=1):
        """Rows and columns, which are multiples of these."""

        def about(least, most, step):
            return (least + self.below(most - least)) // step * step + step

        few = about(0, 80, below), about(0, 150, beside)
        return {
            "no rows": (0, few[1]),
            "no columns": (few[0], 0),
            "least": (below, beside),
            "small": few,
            # More columns and rows than are decoded at once.
            "wide": (about(0, 2, below), about(2000, 4500, beside)),
            "tall": (about(1000, 2100, below), about(0, 8, beside)),
            "large": (about(100, 500, below), about(1000, 1500, beside)),
        }[self.kind]

    def matrices(self):
        return {"no columns": 0, "least": 1}.get(self.kind, 3)

    def octets(self, *shape):
        return self.generator.integers(0, 256, shape, np.uint8)

    def codes(self, dtype, *shape):
        """Any bits: also NaN."""
        size = np.dtype(dtype).itemsize
        return self.octets(*shape[:-1], shape[-1] * size).view(dtype) if shape else self.octets(size).view(dtype)[0]

    def words(self, *shape):
        """Words of codes, two of which have the least and the greatest code only."""
        array = self.codes(np.int32, *shape)
        array.reshape(-1)[:1], array.reshape(-1)[-1:] = 0, -1
        return array

    def scales(self, dtype, *shape):
        """Finite numbers: usual ones or, sometimes, any."""
        if dtype == E8M0:
            return self.exponents(*shape).view(E8M0)
        if self.below(3) == 0:
            array = np.atleast_1d(self.codes(dtype, *shape))
            return np.where(np.isfinite(f32(array)), array, dtype(1)).reshape(shape)
        return (self.generator.uniform(1e-4, 0.02, shape) * self.generator.choice([1, 1, 1, -1], shape)).astype(dtype)

    def wide(self, *shape):
        return self.scales(self.pick(F32, F16, BF16), *shape)

    def exponents(self, *shape):
        """E8M0, with the least and the greatest numbers and NaN."""
        array = self.generator.integers(100, 150, shape, np.uint8)
        array.reshape(-1)[:4] = [0, 1, 254, 255][: array.size]
        return array

    def whole(self):
        return self.scales(F32, *self.pick((), (1,)))


def grid(shape, block):
    return [-(-dim // size) for dim, size in zip(shape, block)]


def text(value):
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def quantization(method, **more):
    return {"quantization_config": {"quant_method": method, **more}}


def ct_config(format, **weights):
    """The configuration of compressed-tensors."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return quantization("compressed-tensors", format=format, config_groups=groups)


# The schemes. Each function yields cases: what the name begins with, the stored tensors, and the configuration. A third
# dict is hf_quant_config.json.


def fp8(r):
    for scale in [F32, BF16, E8M0]:
        shape, block = r.shape(), r.pick((128, 128), (32, 48), (20, 16), (3, 5))
        name = "m.scale" if scale == E8M0 else "m.weight_scale_inv"
        yield "fp8_block", {"m.weight": r.codes(E4M3, *shape), name: r.scales(scale, *grid(shape, block))}, (
            quantization("fp8", weight_block_size=block))
    for dtype in [E4M3, E5M2, E4M3_FNUZ, E5M2_FNUZ]:
        rows, cols = r.shape()
        scale = r.wide(*r.pick((), (1,), (1, 1), (rows,), (rows, 1)))
        yield "fp8_scaled", {"m.weight": r.codes(dtype, rows, cols), "m.weight_scale": scale}
    rows, cols = r.shape()
    scale = r.codes(F32, rows, 1)
    scale[:3, 0] = [np.inf, np.nan, -0.0][:rows]
    yield "fp8_extremes", {"m.weight": r.codes(E4M3, rows, cols), "m.weight_scale": scale}
    shape, block = r.shape(), (16, 24)
    scale = r.scales(F32, *grid(shape, block))
    yield "fp8_inverse", {"m.weight": r.codes(E4M3, *shape), "m.weight_scale_inv": scale}, (
        quantization("fp8", weight_block_size=block, weight_scale_semantics="inverse"))
    rows, cols = r.shape()
    yield "fp8_mistral", {"m.weight": r.codes(E4M3, rows, cols), "m.qscale_weight": r.whole()}
    count, (rows, cols) = r.matrices(), r.shape()
    codes = r.codes(E4M3, count, rows, cols)
    for shape in [(count,), (count, 1, 1), (count, rows), (count, rows, 1), (count, 1, cols)]:
        yield "fp8_experts", {"e.gate_up_proj": codes, "e.gate_up_proj_scale": r.wide(*shape)}, quantization("fp8")
    scale = r.wide(count, *grid((rows, cols), (16, 24)))
    yield "fp8_experts", {"e.gate_up_proj": codes, "e.gate_up_proj_scale_inv": scale}, (
        quantization("fp8", weight_block_size=[16, 24]))
    shape, block = r.shape(), (20, 16)
    yield "ct_float_block", {"m.weight": r.codes(E4M3, *shape), "m.weight_scale": r.wide(*grid(shape, block)),
                             "m.input_scale": r.whole()}, ct_config(
                                 "float-quantized", num_bits=8, type="float", strategy="block", block_structure=block)
    shape = r.shape(32, 32)
    [below, beside] = grid(shape, (32, 32))
    yield "modelopt_fp8", {"m.weight": r.codes(E4M3, *shape), "m.weight_scale": r.scales(F32, below, 1, beside, 1)}, (
        quantization("modelopt", weight_block_size=[32, 32]))
    rows, cols = r.shape()
    for dtype, format in [(E4M3, "float8_e4m3fn"), (E5M2, "float8_e5m2")]:
        yield "comfy_fp8", {"m.weight": r.codes(dtype, rows, cols), "m.weight_scale": r.whole(),
                            "m.comfy_quant": text({"format": format})}
    yield "comfy_fp8_old", {"m.weight": r.codes(E5M2, rows, cols), "m.scale_weight": r.whole(),
                            "m.scale_input": r.whole(), "scaled_fp8": r.codes(E5M2, 0)}


def int8(r):
    rows, cols = r.shape()
    size = r.pick(8, 16, 33)
    for strategy, shape in [("tensor", (1,)), ("channel", (rows, 1)), ("group", (rows, -(-cols // size)))]:
        for symmetric in [True, False]:
            tensors = {"m.weight": r.codes(np.int8, rows, cols), "m.weight_scale": r.wide(*shape)}
            if not symmetric:
                tensors["m.weight_zero_point"] = r.codes(np.int8, *shape)
                tensors["m.weight_zero_point"].reshape(-1)[:2] = [-128, 127][: tensors["m.weight_zero_point"].size]
            more = {"group_size": size} if strategy == "group" else {}
            yield "ct_int8", tensors, ct_config(
                "int-quantized", num_bits=8, strategy=strategy, symmetric=symmetric, **more)
    rows, cols = r.shape()
    yield "bnb_int8", {"m.weight": r.codes(np.int8, rows, cols), "m.SCB": r.scales(F32, rows),
                       "m.weight_format": np.array(0, np.uint8)}, quantization("bitsandbytes", load_in_8bit=True)


def mx_floats(r):
    rows, cols = r.shape(1, 32)
    codes, scale = r.octets(rows, cols // 2), r.exponents(rows, cols // 32)
    yield "ct_mxfp4", {"m.weight_packed": codes, "m.weight_scale": scale}, ct_config(
        "mxfp4-pack-quantized", num_bits=4, type="float", group_size=32)
    yield "modelopt_mxfp4", {"m.weight": codes, "m.weight_scale": scale}, None, {
        "quantization": {"quant_algo": "W4A8_MXFP4_FP8", "group_size": 32}}
    yield "deepseek_v4_experts", {"m.weight": codes.view(np.int8), "m.scale": scale.view(E8M0)}, quantization(
        "fp8", expert_dtype="fp4", weight_block_size=[128, 128])
    yield "deepseek_v4_experts", {"m.weight": (r.octets(rows, cols) & 15).view(E2M1), "m.scale": scale.view(E8M0)}
    count = r.matrices()
    blocks, scale = r.octets(count, rows, cols // 32, 16), r.exponents(count, rows, cols // 32)
    yield "gpt_oss", {"e.down_proj_blocks": blocks, "e.down_proj_scales": scale}, quantization("mxfp4")
    yield "gpt_oss_original", {"block.0.mlp.mlp1_weight.blocks": blocks, "block.0.mlp.mlp1_weight.scales": scale}

    rows, cols = r.shape()
    codes, scale = r.codes(E4M3, rows, cols), r.exponents(rows, -(-cols // 32))
    yield "ct_mxfp8", {"m.weight": codes, "m.weight_scale": scale}, ct_config(
        "mxfp8-quantized", num_bits=8, type="float", group_size=32)
    yield "ct_mxfp8", {"m.weight": codes, "m.weight_scale_inv": scale}, quantization("mxfp8")
    yield "ct_mxfp8", {"m.weight": codes, "m.scale": scale.view(E8M0)}, quantization("mxfp8")
    rows, cols = r.shape(16, 16)
    yield "comfy_mxfp8", {"m.weight": r.codes(E4M3, rows, cols), "m.weight_scale": r.exponents(*tiled(rows, cols, 32)),
                          "m.comfy_quant": text({"format": "mxfp8"})}


def tiled(rows, cols, size):
    """The shape of scales in tiles of 128 rows and 4 columns."""
    return -(-rows // 128) * 128, -(-cols // (4 * size)) * 4


def nvfp4(r):
    rows, cols = r.shape(1, 2)
    codes, scale = r.octets(rows, cols // 2), r.codes(E4M3, rows, -(-cols // 16))
    other = {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    yield "ct_nvfp4", {"m.weight_packed": codes, "m.weight_scale": scale, "m.weight_global_scale": r.whole(),
                       "m.input_global_scale": r.whole()}, ct_config("nvfp4-pack-quantized", num_bits=4, group_size=16)
    yield "modelopt_nvfp4", {"m.weight": codes, "m.weight_scale": scale, "m.weight_scale_2": r.whole()}, None, other
    yield "f4_nvfp4", {"m.weight": (r.octets(rows, cols) & 15).view(E2M1), "m.weight_scale": scale,
                       "m.weight_scale_2": r.whole()}
    count = r.matrices()
    for whole in [(), (count,)]:
        yield "modelopt_nvfp4", {
            "m.weight": r.octets(count, rows, cols // 2), "m.weight_scale": r.codes(E4M3, count, rows, -(-cols // 16)),
            "m.weight_scale_2": r.scales(F32, *whole)}, None, other
    # A matrix without rows and with one column could also be packed along its columns.
    rows, cols = r.shape(16, 2)
    yield "modelopt_nvfp4_rows", {
        "e.gate_up_proj": r.octets(count, rows // 2, cols), "e.gate_up_proj_weight_scale_2": r.whole(),
        "e.gate_up_proj_weight_scale": r.codes(E4M3, count, rows // 16, cols)}, None, other
    rows, cols = r.shape(16, 16)
    scale = r.codes(E4M3, *tiled(rows, cols, 16))
    yield "comfy_nvfp4", {"m.weight": r.octets(rows, cols // 2), "m.weight_scale": scale, "m.weight_scale_2": r.whole(),
                          "m.comfy_quant": text({"format": "nvfp4"})}


def packed(r):
    for bits in range(1, 9):
        for symmetric in [True, False]:
            # Otherwise nothing tells dense words from those of versions before 0.18.
            rows, cols = r.shape(1, 1 if 32 % bits == 0 else 32)
            size = r.pick(cols or 1, 32, 24)
            yield pack(r, bits, rows, cols, -(-cols * bits // 32), size, symmetric)
    for bits in [3, 5, 6, 7]:
        rows, cols = r.shape(1, 32)
        yield pack(r, bits, rows, cols, -(-cols // (32 // bits)), cols or 1, True)
    for group in [0, -1]:
        rows, cols = r.shape()
        name, tensors, config = pack(r, 4, rows, cols, -(-cols // 8), 32, True)
        tensors["m.weight_g_idx"] = r.generator.permutation(cols).astype(np.int32) // 32 if group == 0 else np.full(
            cols, group, np.int32)
        yield name, tensors, config


def pack(r, bits, rows, cols, words, size, symmetric):
    groups = -(-cols // size)
    tensors = {"m.weight_packed": r.words(rows, words), "m.weight_scale": r.wide(rows, groups),
               "m.weight_shape": np.array([rows, cols], r.pick(np.int32, np.int64))}
    if not symmetric and r.below(3) > 0:
        tensors["m.weight_zero_point"] = r.words(-(-rows * bits // 32), groups)
    elif not symmetric:
        half = 2 ** (bits - 1)
        tensors["m.weight_zero_point"] = r.generator.integers(-half, half, (rows, groups), np.int8)
    return "ct_packed_", tensors, ct_config(
        "pack-quantized", num_bits=bits, strategy="group", group_size=size, symmetric=symmetric)


def int4_pairs(r):
    rows, cols = r.shape(2)
    size = r.pick(32, 24)
    for outer in [(), (r.matrices(),)]:
        yield "modelopt_int4", {"m.weight": r.octets(*outer, rows // 2, cols),
                                "m.weight_scale": r.wide(*outer, rows, -(-cols // size)),
                                "m.pre_quant_scale": r.wide(cols)}, None, {
                                    "quantization": {"quant_algo": "W4A16_AWQ", "group_size": size}}


def slm1(r):
    rows, cols = r.shape(1, 32)
    for outer in [(), (r.matrices(),)]:
        yield "slm1_q8", {"m.weight": r.codes(np.int8, *outer, rows, cols),
                          "m.weight.slm_scale": r.scales(F32, *outer, rows, 1)}, None
        for size in [2, 32] if cols else []:
            yield "slm1_q4", {"m.weight": r.octets(*outer, rows, cols // 2),
                              "m.weight.slm_scale": r.scales(F32, *outer, rows, cols // size)}, None


def awq(r):
    rows, cols = r.shape(8)
    size = r.pick(32, 24, 128)
    groups = -(-cols // size)
    yield "awq", {"m.qweight": r.words(cols, rows // 8), "m.qzeros": r.words(groups, rows // 8),
                  "m.scales": r.wide(groups, rows)}, quantization("awq", version="gemm", bits=4, group_size=size)


def gptq(r):
    formats = [
        ("gptq", {}), ("gptq", {"checkpoint_format": "gptq"}), ("gptq", {"checkpoint_format": "gptq_v2"}),
        ("auto-round", {"packing_format": "auto_round:auto_gptq"}), ("auto-round", {"packing_format": "auto_round"}),
    ]
    for bits, step in [(2, 16), (3, 32), (4, 8), (8, 4)]:
        for order in [False, True]:
            for method, format in formats:
                rows, cols = r.shape(1, step)
                size = r.pick(16, 24, 128)
                groups = -(-cols // size)
                tensors = {"m.qweight": r.words(cols * bits // 32, rows), "m.scales": r.wide(groups, rows),
                           "m.qzeros": r.words(groups, -(-rows * bits // 32))}
                if order:
                    tensors["m.g_idx"] = r.generator.permutation(cols).astype(np.int32) // size
                yield "gptq_", tensors, quantization(method, bits=bits, group_size=size, desc_act=order, **format)


def bnb(r):
    for kind in ["nf4", "fp4"]:
        for nested in [False, True]:
            for storage in [np.uint8, BF16, F32]:
                shape = list(r.shape())
                shape = r.pick(shape, [3, *shape], [shape[0] * shape[1]])
                count = int(np.prod(shape))
                # Other elements than bytes, and blocks of scales, are padded.
                size, block, nested_block = np.dtype(storage).itemsize, r.pick(64, 128, 4), r.pick(256, 4)
                blocks = -(-count // block)
                tensors = {"m.weight": r.codes(storage, -(-count // (2 * size)), 1),
                           "m.weight.quant_map": r.scales(F32, 16)}
                state = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": shape}
                if nested:
                    tensors["m.weight.absmax"] = r.octets(blocks)
                    tensors["m.weight.nested_absmax"] = r.scales(F32, -(-blocks // nested_block))
                    tensors["m.weight.nested_quant_map"] = r.scales(F32, 256)
                    state |= {"nested_blocksize": nested_block, "nested_dtype": "float32",
                              "nested_offset": float(r.scales(F32, 1)[0])}
                else:
                    tensors["m.weight.absmax"] = r.scales(F32, blocks)
                tensors[f"m.weight.quant_state.bitsandbytes__{kind}"] = text(state)
                yield f"bnb_{kind}", tensors, quantization("bitsandbytes", load_in_4bit=True)


def mlx(r):
    for bits in [2, 3, 4, 5, 6, 8]:
        for size in [32, 64, 128]:
            rows, cols = r.shape(1, size)
            outer, dtype = r.pick((), (1,), (3,)), r.pick(F32, F16, BF16)
            groups = (*outer, rows, cols // size)
            yield "mlx_", {"m.weight": r.words(*outer, rows, cols * bits // 32).view(np.uint32),
                           "m.scales": r.scales(dtype, *groups), "m.biases": r.scales(dtype, *groups)}, {
                               "quantization": {"group_size": size, "bits": bits}}
    for mode, size, bits in [("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)]:
        rows, cols = r.shape(1, 32)
        scale = (r.octets if mode == "nvfp4" else r.exponents)(rows, cols // size)
        yield "mlx_", {"m.weight": r.words(rows, cols * bits // 32).view(np.uint32), "m.scales": scale}, {
            "quantization": {"group_size": size, "bits": bits, "mode": mode}}


def hqq(r):
    for bits, packing in [(8, "8bit_u8"), (6, "8bit_u8"), (5, "8bit_u8"), (4, "4bit_u8"), (3, "3bit_32"), (2, "2bit_u8"),
                          (1.58, "2bit_u8"), (1, "1bit_u8"), (4, None), (8, None)]:
        for axis, size in [(0, 8), (0, 64), (0, None), (1, 8), (1, 64), (1, 24), (1, None), (1, 0)]:
            # All parts of the rows are equal, except with codes of 3 bits.
            below = 1 if packing == "3bit_32" else 8
            rows, cols = shape = r.shape(max(below, size or 1), 1) if axis == 0 else r.shape(below, size or 1)
            grouped = (rows, cols)
            if size:
                grouped = (size, rows * cols // size) if axis == 0 else (rows * cols // size, size)
            one = [(), (1, 1)][r.below(2)]
            of_scales = one if size == 0 else (1, grouped[1]) if axis == 0 else (grouped[0], 1)
            tensors = {"m.W_q": hqq_codes(r, packing, *grouped), "m.scale": r.wide(*of_scales),
                       "m.zero": r.wide(*of_scales), "m.shape": np.array(shape, np.int64),
                       "m.nbits": np.array(bits, F32 if bits == 1.58 else np.int32),
                       "m.axis": np.array(axis, np.int32), "m.channel_wise": np.array(size != 0, np.uint8),
                       "m.quant_zero": np.array(0, np.uint8), "m.compute_dtype": letters("torch.float16")}
            if size is not None:
                # A scale for the whole weight has no groups.
                tensors["m.group_size"] = np.array(size or 64, np.int32)
            if packing:
                tensors["m.packing"] = letters(packing)
                dtype = r.pick(F32, F16, BF16)
                octets = tensors["m.W_q"].shape[1] * tensors["m.W_q"].itemsize
                if r.below(3) == 0 and octets % np.dtype(dtype).itemsize == 0:
                    shape = tensors["m.W_q"].shape[0], octets // np.dtype(dtype).itemsize
                    tensors["m.W_q"] = np.frombuffer(tensors["m.W_q"].tobytes(), dtype).reshape(shape)
                    tensors["m.view_as_float"] = np.array(1, np.uint8)
            yield "hqq_", tensors, r.pick(None, quantization("hqq"))


def aqlm(r):
    for count, bits, height, width in [(1, 8, 1, 8), (2, 8, 1, 8), (4, 8, 2, 8), (1, 9, 2, 4), (1, 12, 1, 8), (3, 5, 1, 1),
                                       (8, 8, 1, 32), (2, 1, 3, 5), (1, 16, 1, 1)]:
        rows, cols = r.shape(height, width)
        shape, dtype = (rows // height, cols // width, count), np.int8 if bits <= 8 else np.int16
        tensors = {"m.codes": r.codes(dtype, *shape), "m.codebooks": r.wide(count, 2**bits, height, width),
                   "m.scales": r.wide(shape[0], 1, 1, 1)}
        tensors["m.codebooks"].reshape(-1)[:3] = [0, -0.0, 1]
        yield "aqlm_", tensors, r.pick(None, quantization(
            "aqlm", num_codebooks=count, nbits_per_codebook=bits, in_group_size=width, out_group_size=height))


def exl2(r):
    for widths in [(4,), (8, 6, 5), (5, 4, 3, 2), (6, 2), (8, 3), (3,), (2,)]:
        for is_permuted in [True, True, False]:
            rows, cols = r.shape(1, 1 if is_permuted else 32)
            tensors = exl2_tensors(r, rows, cols, widths, is_permuted, r.pick(1, 2, 4))
            if r.below(3) == 0:
                count = len(tensors["m.q_scale_max"])
                tensors["m.q_scale_max"] = r.generator.uniform(-1e-4, 1e-4, count).astype(F16)
            yield "exl2_", tensors, r.pick(None, quantization("exl2", bits=4.25))


def exl2_tensors(r, rows, cols, widths, is_permuted, size):
    """A weight whose groups have codes of these widths, at most `size` times so many as fill whole words. Without a
    permutation, the columns are a multiple of 32, and so are the codes of each group."""
    groups, words, left = [], 0, cols
    while left:
        bits = widths[min(len(groups) // 2, len(widths) - 1)]
        codes = min(left, size * (32 // math.gcd(32, bits) if is_permuted else 32))
        groups += [(bits, words)]
        words += -(-codes * bits // 32)
        left -= codes
    columns = -(-rows // 32) * 32
    tensors = {"m.q_weight": r.words(words, columns), "m.q_scale": r.words(len(groups), columns // 8),
               "m.q_groups": np.array(groups, np.uint16).reshape(-1).view(np.int16),
               "m.q_scale_max": r.scales(F16, len(groups)), "m.bias": r.scales(F16, rows)}
    if is_permuted:
        tensors["m.q_invperm"] = r.generator.permutation(cols).astype(np.int32)
    return tensors


def hqq_codes(r, packing, rows, cols):
    if packing is None:
        return r.scales(r.pick(F32, F16, BF16), rows, cols)
    number = HQQ_PACKINGS[packing][0]
    return r.words(-(-rows // number), cols) if number == 10 else r.octets(-(-rows // number), cols)


def letters(word):
    return np.frombuffer(word.encode(), np.uint8)


def compare_with_mlx(tensors, config, expected):
    """Compares the numbers of MLX, which has no empty arrays and takes the E8M0 code of NaN for a power of two."""
    if expected.size == 0:
        return
    config = config["quantization"]
    mode, codes, scale, bias = config.get("mode", "affine"), tensors["m.weight"], tensors["m.scales"], None
    if mode == "affine":
        scale, bias = f32(scale), mx.array(f32(tensors["m.biases"]))
    found = np.array(mx.dequantize(mx.array(codes), mx.array(scale), bias, config["group_size"], config["bits"], mode,
                                   dtype=mx.float32))
    if mode.startswith("mx"):
        found[np.repeat(scale == 255, 32, -1)] = np.nan
    wrong = difference(found, expected)
    assert not wrong, f"MLX, {config}: {wrong}"


SCHEMES = [fp8, int8, mx_floats, nvfp4, packed, int4_pairs, awq, gptq, bnb, mlx, slm1, hqq, aqlm, exl2]


def make(seed, large):
    cases = []
    for round, kind in enumerate(KINDS + ["large"] * large):
        for number, scheme in enumerate(SCHEMES):
            for beginning, tensors, *configs in scheme(Random([seed, round, number], kind)):
                config, other = [*configs, None, None][:2]
                expected = numbers(beginning, tensors, config, other)
                if scheme == mlx:
                    compare_with_mlx(tensors, config, expected)
                case = {"name": f"{beginning}({len(cases)}, {kind})", "oracle": "formula", "config": config,
                        "other": other, "zero_sign": True}
                cases.append((case, tensors, {weight_name(tensors): expected}))
    return cases


def weight_name(tensors):
    """The name of the weight of a case."""
    first = next(iter(tensors))
    for ending in ["_blocks", ".blocks"]:
        first = first.removesuffix(ending)
    return "m.weight" if first.startswith("m.") else first


if __name__ == "__main__":
    path, seed = sys.argv[1:3]
    cases = make(int(seed), "--large" in sys.argv)
    write(path, cases)
    print(len(cases), "cases")
