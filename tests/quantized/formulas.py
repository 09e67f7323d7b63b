"""The formulas of the schemes of quantization, in NumPy.

    python tests/quantized/formulas.py FILE

compares the numbers of a file that `vectors.py` has written, which are those of the libraries, with what the formulas
make of the same stored tensors, bit for bit. `random_vectors.py` writes such files with the numbers of the formulas.

All arithmetic is in float32, one operation after the other, in the order of the library. Scales are widened first.
"""

import json
import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
E4M3_FNUZ, E5M2_FNUZ = ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz
E8M0, E2M1 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn
DTYPES = {
    "F32": F32, "F16": F16, "BF16": BF16, "F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E4M3FNUZ": E4M3_FNUZ,
    "F8_E5M2FNUZ": E5M2_FNUZ, "F8_E8M0": E8M0, "F4": E2M1, "U8": np.uint8, "I8": np.int8, "I32": np.int32,
    "U32": np.uint32, "I64": np.int64, "I16": np.int16,
}


# The numbers that codes stand for.


def f32(array):
    return array.astype(F32)


def as_type(array, dtype):
    """The same bytes as elements of another type of the same size."""
    return array if array.dtype == dtype else array.view(dtype)


def nibbles(array, axis=-1, high_first=False):
    """Two codes for each byte, side by side along an axis."""
    pairs = [array >> 4, array & 15] if high_first else [array & 15, array >> 4]
    axis = axis % array.ndim
    shape = [2 * dim if at == axis else dim for at, dim in enumerate(array.shape)]
    return np.stack(pairs, axis + 1).reshape(shape)


def stream(words, bits, count):
    """The first fields in each row of words. They lie one after the other, and begin with the lowest bit."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    every = np.unpackbits(octets, axis=-1, bitorder="little")[..., : count * bits]
    return (every.reshape(*words.shape[:-1], count, bits).astype(np.int32) << np.arange(bits)).sum(-1)


def each_in_word(words, bits, count):
    """The first fields in each row of words. They do not cross words, whose highest bits may be unused."""
    fields = words.view(np.uint32)[..., None] >> (bits * np.arange(32 // bits, dtype=np.uint32))
    return (fields & (2**bits - 1)).astype(np.int32).reshape(len(words), words.shape[1] * (32 // bits))[:, :count]


def spread(scales, shape, block):
    """A scale for each element of a weight. A dimension of 1 counts for all; others have one scale for each block."""
    if scales.ndim == 4:
        scales = scales[:, 0, :, 0]
    scales = scales.reshape(scales.shape + (1,) * (len(shape) - scales.ndim))
    for axis, size in zip([-2, -1], block):
        if scales.shape[axis] not in (1, shape[axis]):
            scales = np.repeat(scales, size, axis)
    return np.broadcast_to(scales[tuple(slice(dim) for dim in shape)], shape)


def untiled(scales, rows, cols):
    """Scales of ComfyUI, which are stored in tiles of 128 rows and 4 columns: the first 32 rows side by side with those
    that are 32, 64 and 96 rows below."""
    r, c = np.arange(rows)[:, None], np.arange(cols)[None, :]
    at = (r // 128 * (scales.shape[1] // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    return scales.reshape(-1)[at]


# The schemes. The tensors `t` have the names that follow the name of the layer; `config` has no levels.


def one(t, *names):
    return next(t[name] for name in names if name in t)


def fp8(t, config):
    """FP8, and INT8 of compressed-tensors: q * s, (q - z) * s or, with inverse scales, q / s."""
    q = f32(one(t, "weight", "gate_up_proj"))
    s = f32(one(t, "weight_scale_inv", "weight_scale", "gate_up_proj_scale_inv", "gate_up_proj_scale", "scale",
                "scale_weight", "qscale_weight"))
    block = config.get("weight_block_size") or config.get("block_structure") or (1, config.get("group_size"))
    s = spread(s, q.shape, block)
    if "weight_zero_point" in t:
        q = q - spread(f32(t["weight_zero_point"]), q.shape, block)
    return q / s if config.get("weight_scale_semantics") == "inverse" else q * s


def mxfp4(t, config):
    """E2M1 * E8M0, for groups of 32."""
    if "weight" in t or "weight_packed" in t:
        q, s = one(t, "weight", "weight_packed"), one(t, "weight_scale", "scale")
    else:
        # gpt-oss: [..., groups, 16].
        q = one(t, "down_proj_blocks", "mlp1_weight.blocks")
        q = q.reshape(*q.shape[:-2], q.shape[-2] * 16)
        s = one(t, "down_proj_scales", "mlp1_weight.scales")
    q = f32(q if q.dtype == E2M1 else nibbles(q.view(np.uint8)).view(E2M1))
    return q * spread(f32(as_type(s, E8M0)), q.shape, (1, 32))


def mxfp8(t, config):
    """E4M3 * E8M0, for groups of 32."""
    q, s = f32(t["weight"]), as_type(one(t, "weight_scale", "weight_scale_inv", "scale"), E8M0)
    if "comfy_quant" in t:
        s = untiled(s, q.shape[0], -(-q.shape[1] // 32))
    return q * spread(f32(s), q.shape, (1, 32))


def nvfp4(t, config):
    """E2M1 * (E4M3 * float32), for groups of 16. compressed-tensors divides the scales by that of the tensor."""
    q, s = one(t, "weight", "weight_packed", "gate_up_proj"), one(t, "weight_scale", "gate_up_proj_weight_scale")
    block = (1, 16)
    if "comfy_quant" in t:
        q = nibbles(q, high_first=True).view(E2M1)
        s = untiled(s, q.shape[0], -(-q.shape[1] // 16))
    elif "gate_up_proj" in t:
        # Packed along the rows.
        q, block = nibbles(q, axis=-2).view(E2M1), (16, 1)
    elif q.dtype != E2M1:
        q = nibbles(q).view(E2M1)
    if "weight_global_scale" in t:
        s = f32(s) / whole(t["weight_global_scale"])
    else:
        s = f32(s) * whole(one(t, "weight_scale_2", "gate_up_proj_weight_scale_2"))
    return f32(q) * spread(s, q.shape, block)


def whole(scale):
    """The scale of a tensor, or one for each of several matrices."""
    return scale.reshape(()) if scale.size == 1 else scale.reshape(-1, 1, 1)


def packed(t, config):
    """pack-quantized of compressed-tensors: (q - z) * s. Codes and zero points are stored with an offset."""
    bits, (rows, cols) = config["num_bits"], t["weight_shape"].tolist()
    words, s, half = t["weight_packed"], f32(t["weight_scale"]), 2 ** (bits - 1)
    is_dense = words.shape[1] == -(-cols * bits // 32)
    q = f32((stream if is_dense else each_in_word)(words, bits, cols) - half)
    group = np.arange(cols) // config.get("group_size", max(cols, 1))
    if "weight_g_idx" in t and (t["weight_g_idx"] >= 0).all():
        group = t["weight_g_idx"]
    if "weight_zero_point" in t:
        z = t["weight_zero_point"]
        # Packed along the rows; single bytes in old files.
        z = z if z.dtype == np.int8 else stream(z.T, bits, rows).T - half
        q = q - f32(z)[:, group]
    return q * s[:, group]


def int4_pairs(t, config):
    """INT4 of ModelOpt: q * s. A byte has two rows, and the codes are signed."""
    q = nibbles(t["weight"], axis=-2).astype(np.int32)
    q = f32(np.where(q < 8, q, q - 16))
    return q * spread(f32(t["weight_scale"]), q.shape, (1, config["group_size"]))


def slm1(t, config):
    """SLM1: q * s. Signed bytes, or signed codes of 4 bits, the first one of a byte in the low bits."""
    q, s = t["weight"], t["weight.slm_scale"]
    if q.dtype == np.uint8:
        q = nibbles(q).astype(np.int32)
        q = np.where(q < 8, q, q - 16)
    return f32(q) * np.repeat(s, q.shape[-1] // s.shape[-1], -1)


def awq(t, config):
    """AWQ: (q - z) * s, transposed. Eight columns are interleaved in a word."""

    def columns(words):
        fields = stream(words, 4, words.shape[1] * 8)
        return fields.reshape(*words.shape, 8)[:, :, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(fields.shape)

    q, z, s = columns(t["qweight"]), columns(t["qzeros"]), f32(t["scales"])
    group = np.arange(len(q)) // config["group_size"]
    return (f32(q - z[group]) * s[group]).T


def gptq(t, config):
    """GPTQ: (q - z) * s, transposed. The first version stores z - 1, which wraps around."""
    bits, s = config["bits"], f32(t["scales"])
    words, rows = t["qweight"].shape
    cols = words * 32 // bits
    q = stream(t["qweight"].T, bits, cols)
    z = stream(t["qzeros"], bits, rows)
    if (config.get("checkpoint_format") or config.get("packing_format", "gptq")).endswith("gptq"):
        z = (z + 1) % 2**bits
    group = t["g_idx"] if "g_idx" in t else np.arange(cols) // config["group_size"]
    return f32(q - z.T[:, group]) * s.T[:, group]


def bnb_4bit(t, config):
    """bitsandbytes: map[q] * absmax. Blocks run across the rows. Scales can be quantized too, with an offset."""
    state = one(t, "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
    state = json.loads(bytes(state))
    count = int(np.prod(state["shape"]))
    q = nibbles(t["weight"].reshape(-1).view(np.uint8), high_first=True)[:count]
    s = t["weight.absmax"]
    if s.dtype == np.uint8:
        of_scale = np.arange(s.size) // state["nested_blocksize"]
        s = t["weight.nested_quant_map"][s] * t["weight.nested_absmax"][of_scale] + F32(state["nested_offset"])
    return (t["weight.quant_map"][q] * s[np.arange(count) // state["blocksize"]]).reshape(state["shape"])


def bnb_int8(t, config):
    """bitsandbytes INT8: (q * s) * (1 / 127)."""
    return f32(t["weight"]) * t["SCB"][:, None] * F32(1 / 127)


def mlx(t, config):
    """MLX: q * s + bias, or the codes of its other modes."""
    bits, size, mode = config["bits"], config["group_size"], config.get("mode", "affine")
    cols = t["scales"].shape[-1] * size
    q = stream(t["weight"], bits, cols)
    if mode == "affine":
        s, bias = (spread(f32(t[name]), q.shape, (1, size)) for name in ["scales", "biases"])
        return f32(q) * s + bias
    q = f32(q.astype(np.uint8).view(E4M3 if mode == "mxfp8" else E2M1))
    return q * spread(f32(t["scales"].view(E4M3 if mode == "nvfp4" else E8M0)), q.shape, (1, size))


# Number of the codes in a byte or a word, and their width.
HQQ_PACKINGS = {"8bit_u8": (1, 8), "4bit_u8": (2, 4), "3bit_32": (10, 3), "2bit_u8": (4, 2), "1bit_u8": (8, 1)}


def hqq(t, config):
    """HQQ: (q - z) * s. The rows of groups are in equal parts, whose codes are in one byte, the first one in the highest
    bits."""
    shape, axis = t["shape"].tolist(), int(t["axis"])
    count = int(np.prod(shape))
    rows, cols = shape
    if "group_size" in t and t.get("channel_wise", 1):
        size = int(t["group_size"])
        rows, cols = (count // size, size) if axis == 1 else (size, count // size)
    q = t["W_q"]
    if "packing" in t:
        number, bits = HQQ_PACKINGS[bytes(t["packing"]).decode()]
        word = np.dtype(np.uint32 if bits == 3 else np.uint8)
        q = np.frombuffer(q.tobytes(), word).reshape(-(-rows // number), cols)
        parts = [q >> word.type((number - 1 - part) * bits) & word.type(2**bits - 1) for part in range(number)]
        q = np.concatenate(parts)[:rows]
    return ((f32(q) - f32(t["zero"])) * f32(t["scale"])).reshape(shape)


def aqlm(t, config):
    """AQLM: (codebook[q] + ...) * s, for blocks of rows and columns. The sum begins with 0."""
    codes, books = t["codes"], f32(t["codebooks"])
    count, entries, height, width = books.shape
    codes = codes.astype(np.int64) % entries
    total = np.zeros((*codes.shape[:2], height, width), F32)
    for book in range(count):
        total = total + books[book][codes[:, :, book]]
    total = total * f32(t["scales"])
    return total.swapaxes(1, 2).reshape(codes.shape[0] * height, codes.shape[1] * width)


def exl2(t, config):
    """EXL2: (q - half) * s, with s = (q_scale + 1)^2 * (q_scale_max / 256), for groups of codes down the columns. Each
    product is rounded to float16."""
    words, starts, columns = t["q_weight"].T, t["q_groups"].view(np.uint16).reshape(-1, 2).astype(int), []
    order = t.get("q_invperm")
    largest = f32((f32(t["q_scale_max"]) / F32(256)).astype(F16))
    scale = f32((f32((each_in_word(t["q_scale"], 4, len(words)) + 1) ** 2) * largest[:, None]).astype(F16))
    left = None if order is None else len(order)
    for at, (bits, start) in enumerate(starts):
        is_last = at + 1 == len(starts)
        here = words[:, start : None if is_last else starts[at + 1, 1]]
        count = left if is_last and left is not None else here.shape[1] * 32 // bits
        left = left and left - count
        q = stream(here, bits, count) - 2 ** (bits - 1)
        columns.append(f32((f32(q) * scale[at, :, None]).astype(F16)))
    numbers = np.concatenate([np.zeros((len(words), 0), F32), *columns], 1)
    numbers = numbers if order is None else numbers[:, order]
    return np.ascontiguousarray(numbers[: len(t["bias"])] if "bias" in t else numbers)


# The formula of a case, by the beginning of its name.
FORMULAS = {
    "fp8_": fp8, "ct_float_": fp8, "ct_int8": fp8, "modelopt_fp8": fp8, "comfy_fp8": fp8,
    "ct_mxfp4": mxfp4, "modelopt_mxfp4": mxfp4, "gpt_oss": mxfp4, "deepseek_v4_experts": mxfp4,
    "ct_mxfp8": mxfp8, "comfy_mxfp8": mxfp8,
    "ct_nvfp4": nvfp4, "f4_nvfp4": nvfp4, "modelopt_nvfp4": nvfp4, "comfy_nvfp4": nvfp4,
    "ct_packed_": packed, "modelopt_int4": int4_pairs,
    "awq": awq, "gptq_": gptq, "auto_round_": gptq,
    "bnb_nf4": bnb_4bit, "bnb_fp4": bnb_4bit, "bnb_int8": bnb_int8,
    "mlx_": mlx, "slm1_": slm1, "hqq_": hqq, "aqlm_": aqlm, "exl2_": exl2,
}


def parameters(config, other):
    """The parameters of the only layer, in one level."""
    found = {}
    for part in [(config or {}).get("quantization_config"), (config or {}).get("quantization"),
                 (other or {}).get("quantization")]:
        found.update(part or {})
    for group in [found.get("config_groups", {}).get("group_0", {}).get("weights"), found.get("m")]:
        found.update(group or {})
    return found


LAYERS = re.compile(r"^(block\.0\.mlp|m|e)\.")


def numbers(name, tensors, config, other):
    """The weight of a case."""
    [formula] = [formula for beginning, formula in FORMULAS.items() if name.startswith(beginning)]
    t = {LAYERS.sub("", key): tensor for key, tensor in tensors.items()}
    with np.errstate(all="ignore"):
        result = formula(t, parameters(config, other))
    assert result.dtype == F32, (name, result.dtype)
    return result


# Files.


def read(path):
    """The cases of a file: their descriptions, stored tensors, and expected tensors."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    cases = {case["name"]: (case, {}, {}) for case in json.loads(header.pop("__metadata__")["cases"])}
    for key, entry in header.items():
        name, kind, key = key.split("/", 2)
        begin, end = entry["data_offsets"]
        octets = np.frombuffer(data[start + begin : start + end], np.uint8)
        if entry["dtype"] == "F4":
            octets = nibbles(octets)
        tensors = cases[name][1 if kind == "stored" else 2]
        tensors[key] = octets.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return list(cases.values())


def write(path, cases):
    """Writes cases: their descriptions, stored tensors, and expected tensors."""
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    header, parts, end = {"__metadata__": {"cases": json.dumps([case for case, _, _ in cases])}}, [], 0
    for case, stored, expected in cases:
        for kind, tensors in [("stored", stored), ("expected", expected)]:
            for key, tensor in tensors.items():
                octets = tensor.tobytes()
                if tensor.dtype == E2M1:
                    codes = np.frombuffer(octets, np.uint8)
                    octets = (codes[::2] | codes[1::2] << 4).tobytes()
                parts.append(octets)
                header[f"{case['name']}/{kind}/{key}"] = {
                    "dtype": names[tensor.dtype], "shape": tensor.shape, "data_offsets": [end, end + len(octets)]}
                end += len(octets)
    text = json.dumps(header).encode()
    Path(path).write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def difference(found, expected, zero_sign=True):
    """Where two arrays differ, in words, or None. All NaNs are the same."""
    if found.shape != expected.shape:
        return f"the shape is {found.shape}, not {expected.shape}"
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    same = (found.view(np.uint32) == expected.view(np.uint32)) | np.isnan(found) & np.isnan(expected)
    if not zero_sign:
        same |= (found == 0) & (expected == 0)
    wrong = np.argwhere(~same)
    if len(wrong):
        at = tuple(wrong[0].tolist())
        return f"{len(wrong)} of {found.size} differ, the first at {at}: {found[at]}, not {expected[at]}"


def check(path):
    """Whether the formulas give the numbers of all cases of a file."""
    cases, is_right = read(path), True
    for case, stored, expected in cases:
        [expected] = expected.values()
        wrong = difference(numbers(case["name"], stored, case["config"], case["other"]), expected, case["zero_sign"])
        if wrong:
            is_right = False
            print(f"{case['name']}: {wrong}", file=sys.stderr)
    print(len(cases), "cases")
    return is_right


if __name__ == "__main__":
    sys.exit(0 if check(sys.argv[1]) else 1)
