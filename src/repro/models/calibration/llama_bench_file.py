"""The tests of files that llama.cpp's `llama-bench` wrote (`-o json` or `jsonl`).

Owns what its fields mean: which passes a test is, which settings it has, where llama.cpp ran it and which
arithmetic its weights have. Must not know what is fitted to tests. Byte-order marks, UTF-16 and a program's
messages around and between the tests are read past. Other forms, and what the fields leave open, are errors.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.reading import MB, read_bytes
from repro.core.registry import require_choice
from repro.device.op import CPU, GPU, NPU
from repro.models.costs.model_cost import Shape

Test = Mapping[str, Any]
"""A test as written, by field."""

NEEDED_FIELDS = (
    *("model_type", "model_size", "model_n_params", "n_prompt", "n_gen", "n_threads", "n_ubatch"),
    *("backends", "avg_ns"),
)
POSITIVE_FIELDS = ("model_size", "model_n_params", "n_threads", "n_batch", "n_ubatch", "avg_ns")
OTHER_FIELDS = {
    *("model_filename", "model_type", "model_size", "model_n_params", "n_prompt", "n_gen", "test_time"),
    *("avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts", "n_threads"),
}
"""Fields of a model, a test or its outcome, and threads, which have a default; all others are settings."""
TYPE = "type"
"""Name of the setting that is the type of a model's weights."""

BENCH_BYTES = 16 * MB
"""Largest file: some ten thousand tests."""
MOST_BROKEN = 1000
"""Braces that begin no JSON, after which no test is sought: each costs time."""

BACKENDS = {
    **dict.fromkeys(("CPU", "BLAS", "ZenDNN"), CPU),
    **dict.fromkeys(("CUDA", "ROCm", "HIP", "MUSA", "Vulkan", "Metal", "MTL"), GPU),
    **dict.fromkeys(("SYCL", "OpenCL", "Kompute", "WebGPU"), GPU),
    **dict.fromkeys(("CANN", "HTP", "Hexagon"), NPU),
}
"""Processors of llama.cpp's backends; names of devices contain those of their backend."""
FAMILIES = {
    "llama": ("llama", "mistral", "vicuna", "orca_mini"),
    "phi2": ("phi_2",),
    "qwen2": ("qwen1_5", "qwen2"),
}
"""With which words the names of shapes begin that llama.cpp's architecture has; by default its own name."""
SIZE_TOLERANCE = 0.01
"""Relative difference of parameter counts up to which a shape of its family is taken for the model's."""
OFFLOADED = 32
"""Rows from which llama.cpp computes on a GPU although no layers were given to it."""
ALL_LAYERS = 99
"""Layers for the GPU that are all of a model whose number of layers is not known."""

QUANTIZED = re.compile(r"I?Q\d|TQ\d|MXFP|NVFP")
FLOAT_TYPES = {"F32": "fp32", "F16": "fp16", "BF16": "fp16"}
BITS_OF_ARITHMETIC = {"int8": (1.0, 12.5), "fp16": (12.5, 24.0), "fp32": (24.0, 34.0)}
"""Bits a weight, scales included, by arithmetic: quantized weights are computed with as int8."""
MIXTURE = re.compile(r"[Mm]o[Ee]|\d+x\d|Bx\d+E|\bA\d+(\.\d+)?B|\bE\d+B")
PARTIAL_FAMILIES = {
    *("gpt-oss", "deepseek", "deepseek2", "deepseek2-ocr", "deepseek32", "deepseek4", "glm-dsa", "dbrx"),
    *("grok", "arctic", "llama4", "mistral4", "qwen3next", "dots1", "minimax-m2", "kimi-linear", "jamba"),
    *("smallthinker", "hy_v3", "mimo2", "step35", "rnd1", "laguna"),
}
"""Models of which a pass of one row reads a part: mixtures of experts, and Gemma 3n with its tables."""


LLAMA_FORMAT = re.compile(r"\b(iq1_s|q[2-8]_(?:0|1|k))", re.IGNORECASE)
"""A format in a model's name: `llama 1B Q4_K - Medium`."""


@dataclass(frozen=True)
class BenchRow:
    """One test of a file.

    Attributes:
        model: as llama-bench names it, with its quantization.
        arithmetic: precision under which it is billed: `fp32`, `fp16`, or `int8` for all quantized ones.
        size: bytes of its weights.
        read: bytes of them that a pass of one row reads.
        layers: weights by which each row is multiplied; all that a row uses, if the shape is not known.
        head: weights of the output projection, which llama-bench asks for the last row; 0 if not known.
        passes: rows of its passes and their number; the first one has the most rows.
        context: cached tokens before a pass, on average.
        seconds: of all its passes.
        threads: CPU threads; 0 if not known.
        on: processor that computed.
        blocks: layers of the model; 0 if its shape is not known.
        format: storage format of its weights; "" if not known.
    """

    model: str
    arithmetic: str
    size: float
    read: float
    layers: float
    head: float
    passes: tuple[tuple[int, int], ...]
    context: float
    seconds: float
    threads: int
    on: str
    blocks: int = 0
    format: str = ""

    @property
    def rows(self) -> int:
        """Rows of its largest pass."""
        return self.passes[0][0]


def llama_format(model: str) -> str:
    """The storage format in a model's name, as llama-bench prints it; "" for none."""
    match = LLAMA_FORMAT.search(model)
    name = match[0].lower() if match else ""
    return f"{name}_m" if name in ("q3_k", "q4_k", "q5_k") else name


def read_tests(path: Path) -> list[Test]:
    """The tests of a prompt or of generation alone.

    Raises:
        InputError: no such file, another form of output, a test that is broken off or lacks a field, or
            none is left.
    """
    try:
        text = _text(read_bytes(path, BENCH_BYTES))
        tests = list(_json_tests(text))
    except RecursionError:
        raise InputError(f"{path} is nested too deeply; write it with llama-bench -o json") from None
    except OSError as error:
        raise InputError(f"--from-llama-bench {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text ({error.reason}); write it with llama-bench -o json") from None
    if not tests:
        raise InputError(f"{path} is no JSON with tests; write it with llama-bench -o json")
    if (test_count := text.count('"model_type":')) > len(tests):
        raise InputError(
            f"{path}: {test_count - len(tests)} of {test_count} tests are broken off or have lines between"
        )
    for i, test in enumerate(tests, 1):
        if missing_fields := [name for name in NEEDED_FIELDS if name not in test]:
            raise InputError(
                f"{path}, test {i} lacks {', '.join(missing_fields)}; write the file with llama-bench -o json"
            )
    labelled_tests: list[Test] = [{**test, "label": f"{path}, test {i}"} for i, test in enumerate(tests, 1)]
    single_tests = [t for t in labelled_tests if (_number(t, "n_prompt") >= 1) != (_number(t, "n_gen") >= 1)]
    if not single_tests:
        raise InputError(f"{path} has no test of a prompt (-p) or of generation (-n) alone")
    return single_tests


def _text(content: bytes) -> str:
    """A file's text: UTF-16 with or without a mark (PowerShell), or UTF-8."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    if b"\0" in content[:2]:
        return content.decode("utf-16-be" if content[:1] == b"\0" else "utf-16-le")
    return content.decode("utf-8-sig")


def _json_tests(text: str) -> Iterator[Test]:
    """Objects with fields of a test, wherever in a text they begin."""
    decoder, position, broken_objects = json.JSONDecoder(), 0, 0
    while (position := text.find("{", position)) >= 0 and broken_objects < MOST_BROKEN:
        try:
            value, position = decoder.raw_decode(text, position)
            yield from _tests_in(value)
        except ValueError:
            position, broken_objects = position + 1, broken_objects + 1


def _tests_in(value: Any) -> Iterator[Test]:
    if isinstance(value, dict) and ("model_type" in value or "n_prompt" in value):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _tests_in(child)


def _true(test: Test, name: str) -> bool:
    return str(test.get(name)).lower() in ("1", "true")


def _number(test: Test, name: str, default_value: float | None = None) -> float:
    if default_value is not None and name not in test:
        return default_value
    try:
        value = float(test[name])
    except (TypeError, ValueError):
        raise InputError(f"{test['label']}: {name} is {test[name]!r}; it must be a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError(f"{test['label']}: {name} is {value}; it must be finite")
    if name in POSITIVE_FIELDS and value <= 0:
        raise InputError(f"{test['label']}: {name} is {test[name]!r}; it must be above 0")
    return value


def chosen(tests: Sequence[Test], choices: Sequence[str] = ()) -> list[Test]:
    """The tests of some settings, written `field=value`.

    Raises:
        InputError: there is no such setting, or no test of it.
    """
    pool = list(tests)
    for choice in choices:
        name, _, value = choice.partition("=")
        setting_names = {key for test in pool for key in _settings(test)} | {"n_threads"}
        require_choice("--setting", name, setting_names)
        matching_tests = [test for test in pool if _setting_text(test, name) == value.strip().lower()]
        if not matching_tests:
            values = _list_values(pool, name)
            raise InputError(f"--setting {choice}: the file has tests of {name} {values}")
        pool = matching_tests
    return pool


def _require_one_setting(tests: Sequence[Test]) -> None:
    """InputError for tests of one processor that differ in more than threads and models."""
    names = dict.fromkeys(key for test in tests for key in _settings(test))
    options = [name for name in names if len({_setting_text(test, name) for test in tests}) > 1]
    if TYPE in options and len({_arithmetic(test) for test in tests}) == len(
        {weights_type(t) for t in tests}
    ):
        options.remove(TYPE)  # one type for each arithmetic
    if options:
        settings = "; ".join(f"{name}: {_list_values(tests, name)}" for name in options)
        raise InputError(
            f"the file has tests of several settings ({settings}); choose one, as --setting "
            f'"{options[0]}={_setting_text(tests[0], options[0])}"'
        )


def _settings(test: Test) -> list[str]:
    return [*(name for name in test if name not in OTHER_FIELDS and name != "label"), TYPE]


def _setting_text(test: Test, name: str) -> str:
    return str(weights_type(test) if name == TYPE else test.get(name, "absent")).strip().lower()


def _list_values(tests: Sequence[Test], name: str) -> str:
    return ", ".join(dict.fromkeys(_setting_text(test, name) for test in tests))


def weights_type(test: Test) -> str:
    """The type that a model's name ends with, as in `llama 7B Q4_K - Medium` or `qwen2 0.5B all F32`.

    Raises:
        InputError: it names none.
    """
    words = str(test["model_type"]).replace(",", "").split()
    for i, word in enumerate(words):
        if word in FLOAT_TYPES or QUANTIZED.match(word):
            return " ".join(words[i:])
    raise InputError(
        f"{test['label']}: model_type {test['model_type']!r} names no known type of weights; "
        f"known are {', '.join(FLOAT_TYPES)} and quantized ones, as Q4_0"
    )


def _arithmetic(test: Test) -> str:
    """The arithmetic of a model's weights: what its type says, if its bytes say so, too.

    A type that llama.cpp guessed is what the bytes say.
    """
    kind = weights_type(test)
    by_name = FLOAT_TYPES.get(kind.split()[0], "int8")
    bits = 8 * _number(test, "model_size") / _number(test, "model_n_params")
    by_bytes = next((name for name, (low, high) in BITS_OF_ARITHMETIC.items() if low <= bits < high), None)
    if by_bytes is None or (by_bytes != by_name and "(guessed)" not in kind):
        raise InputError(
            f"{test['label']}: model_type {test['model_type']!r} against {bits:.3g} bits a weight "
            "(model_size over model_n_params); correct the field that is wrong"
        )
    return by_bytes


def bench_rows(
    tests: Sequence[Test], shapes: Mapping[str, Shape], active: float | None = None
) -> list[BenchRow]:
    """Tests as passes on processors; those of one processor are of one setting.

    Args:
        tests: of one machine.
        shapes: known shapes by name, one of which may be a model's: of its family, with as many parameters.
        active: weights that a pass of one row uses, of the file's only mixture of experts, or only model.

    Raises:
        InputError: a field has a wrong value, tests of a processor are of several settings, or something
            cannot be known: the processor, the arithmetic, how many weights of a mixture are active.
    """
    models = {test["model_type"]: test for test in tests}
    mixtures = [model for model in models if MIXTURE.search(model) or model.split()[0] in PARTIAL_FAMILIES]
    if mixtures and active is None:
        raise InputError(
            f"{', '.join(mixtures)}: a pass of one row does not read all weights (experts, or tables by "
            "layer); give how many it uses, as --active-parameters 3.3e9"
        )
    if active is not None:
        mixtures = mixtures or list(models)
        if len(mixtures) > 1:
            raise InputError(f"--active-parameters is of one model; the file has {', '.join(mixtures)}")
        all_weights = _number(models[mixtures[0]], "model_n_params")
        if not 0 < active < all_weights:
            raise InputError(f"--active-parameters {active:g}: it must be above 0 and below {all_weights:g}")
    rows = [_row(test, shapes, active if test["model_type"] in mixtures else None) for test in tests]
    for processor in dict.fromkeys(row.on for row in rows):
        _require_one_setting([test for test, row in zip(tests, rows, strict=True) if row.on == processor])
    if len(machines := dict.fromkeys(str(test.get("cpu_info")) for test in tests)) > 1:
        raise InputError(f"the files are of several machines (cpu_info: {', '.join(machines)}); name one's")
    return rows


def _shape(test: Test, shapes: Mapping[str, Shape]) -> Shape | None:
    """The decoder of the model's family whose parameters come nearest to its own; None if none are near.

    A file may hold a second copy of a table that the embedding and the output projection share.
    """
    architecture, parameters = str(test["model_type"]).split()[0].lower(), _number(test, "model_n_params")
    beginnings = FAMILIES.get(architecture, (architecture,))
    distances = [
        (abs(parameter_count / parameters - 1.0), name)
        for name, shape in shapes.items()
        if not (shape.encoder or shape.features or shape.medusa)
        and any(name == word or name.startswith(f"{word}_") for word in beginnings)
        for parameter_count in (shape.parameters, shape.parameters + shape.tied * shape.head_weights)
    ]
    distance, name = min(distances, default=(SIZE_TOLERANCE, ""))
    return shapes[name] if distance < SIZE_TOLERANCE else None


def _row(test: Test, shapes: Mapping[str, Shape], active: float | None) -> BenchRow:
    prompt_tokens, generated_tokens = int(_number(test, "n_prompt")), int(_number(test, "n_gen"))
    size, parameters = _number(test, "model_size"), _number(test, "model_n_params")
    shape = None if active else _shape(test, shapes)
    passes = ((1, generated_tokens),) if generated_tokens > 0 else _prompt_passes(test, prompt_tokens)
    return BenchRow(
        model=str(test["model_type"]),
        arithmetic=_arithmetic(test),
        size=size,
        read=size * (active or parameters) / parameters,
        layers=shape.layers * shape.layer_weights if shape else active or parameters,
        head=shape.head_weights if shape else 0.0,
        passes=passes,
        context=_number(test, "n_depth", 0) + (prompt_tokens + generated_tokens) / 2,
        seconds=_number(test, "avg_ns") / 1e9,
        threads=int(_number(test, "n_threads")),
        on=_processor(test, passes[0][0], shape.layers + 1 if shape else ALL_LAYERS),
        blocks=shape.layers if shape else 0,
        format=llama_format(str(test["model_type"])),
    )


def _prompt_passes(test: Test, prompt_tokens: int) -> tuple[tuple[int, int], ...]:
    """Passes over a prompt by their rows: batches of `n_batch`, each divided into `n_ubatch`."""
    batch_size = int(_number(test, "n_batch", prompt_tokens))
    passes: Counter[int] = Counter()
    for token_count, batch_count in (
        (batch_size, prompt_tokens // batch_size),
        (prompt_tokens % batch_size, 1),
    ):
        rows_at_most = min(batch_size, int(_number(test, "n_ubatch")))
        passes[rows_at_most] += token_count // rows_at_most * batch_count
        passes[token_count % rows_at_most] += batch_count
    return tuple(
        sorted(
            ((row_count, pass_count) for row_count, pass_count in passes.items() if row_count and pass_count),
            reverse=True,
        )
    )


def _processor(test: Test, row_count: int, layer_count: int) -> str:
    """Where llama.cpp computed passes of so many rows, of a model with so many layers, the last its output.

    Raises:
        InputError: on several processors, or it cannot be known.
    """
    accelerator = _accelerator(test)
    gpu_layer_count, gpu_info = int(_number(test, "n_gpu_layers", 0)), str(test.get("gpu_info") or "")
    if accelerator is None or (
        gpu_layer_count == 0 and (row_count < OFFLOADED or not gpu_info or _true(test, "no_op_offload"))
    ):
        return CPU
    device_names = str(test.get("devices") or "auto")
    doubts = {
        f"llama.cpp computes {OFFLOADED} rows or more on the {accelerator} "
        "even if n_gpu_layers is 0": gpu_layer_count == 0,
        f"backends is {test['backends']!r}, but gpu_info names no device": not gpu_info,
        f"n_gpu_layers is {gpu_layer_count}, so that layers may have stayed on the CPU": 0
        < gpu_layer_count
        < layer_count,
        "n_cpu_moe leaves experts on the CPU": _number(test, "n_cpu_moe", 0) > 0,
        "no_kv_offload leaves attention on the CPU": _true(test, "no_kv_offload"),
        "tensor_buft_overrides moves tensors": str(test.get("tensor_buft_overrides") or "none") != "none",
        "the model may lie on several devices": test.get("split_mode") != "none"
        and ("," in gpu_info if device_names == "auto" else "/" in device_names),
    }
    for doubt, is_open in doubts.items():
        if is_open:
            raise InputError(
                f"{test['label']}: where it ran is not known: {doubt}; run it with -dev none for the CPU, "
                f"or with -ngl {ALL_LAYERS} -dev NAME for a whole model on one device"
            )
    return accelerator


def _accelerator(test: Test) -> str | None:
    """The processor beside the CPU that layers can have been given to."""
    devices = str(test.get("devices") or "auto")
    if devices == "none":
        return None
    names = str(test["backends"]).split(",") if devices == "auto" else devices.split("/")
    kinds = set()
    for name in (name.strip() for name in names):
        backend_kinds = [kind for backend, kind in BACKENDS.items() if backend.lower() in name.lower()]
        if name and not backend_kinds:
            raise InputError(
                f"{test['label']}: where {name!r} computes is not known; known are {', '.join(BACKENDS)}"
            )
        kinds |= set(backend_kinds) - {CPU}
    if len(kinds) > 1:
        raise InputError(f"{test['label']}: {', '.join(names)} are several processors; run it with -dev NAME")
    return kinds.pop() if kinds else None
