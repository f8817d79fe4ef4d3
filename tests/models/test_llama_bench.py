"""llama-bench's files become devices and engines that answer as fast as the file says, or are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.commands import VERBS
from repro.commands import run as run_verb
from repro.core.errors import InputError
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import with_engine
from repro.experiments.summaries import new_machine
from repro.models.calibration.passes import PassTimer
from repro.models.costs.model_cost import ModelCost, Precision, Shape

PARAMETERS = 1.0e9
SIZE = 5.0e8
MODEL = {"model_type": "llama 1B Q4_0", "model_size": SIZE, "model_n_params": PARAMETERS}


def entry(n_prompt: int = 0, n_gen: int = 0, rate: float = 10.0, **changed: object) -> dict[str, Any]:
    """A test of `rate` tokens a second, with all fields of build 7651."""
    told = {"build_commit": "abc", "cpu_info": "Some Chip", "gpu_info": "", "backends": "CPU"}
    flags = {"n_gpu_layers": 99, "n_cpu_moe": 0, "split_mode": "layer", "no_kv_offload": False}
    more = {"devices": "auto", "tensor_buft_overrides": "none", "no_op_offload": 0, "flash_attn": False}
    sizes = {"n_batch": 2048, "n_ubatch": 512, "n_threads": 4, "type_k": "f16", "n_depth": 0}
    asked = {"n_prompt": n_prompt, "n_gen": n_gen, "avg_ns": 1e9 * (n_prompt + n_gen) / rate, "avg_ts": rate}
    return told | MODEL | sizes | flags | more | asked | changed


PROMPT, ANSWER = entry(n_prompt=512, rate=60.0), entry(n_gen=128, rate=12.0)
GPU = {"backends": "Vulkan", "gpu_info": "Some GPU"}


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; what the command says of methods takes seconds, and has its own tests."""
    monkeypatch.setattr(new_machine, "answer_lines", lambda device, engine: [])
    for group in ("device", "engine"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path / "conf"


def run(conf: Path, content: object, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The device and the engine of a file with some tests, or with some bytes."""
    path = conf.parent / "bench.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    VERBS["calibrate"](["--from-llama-bench", str(path), "--conf", str(conf), *options])
    files = [
        yaml.safe_load((conf / group / "bench.yaml").read_text(encoding="utf-8"))
        for group in ("device", "engine")
    ]
    return files[0], files[1]


def refused(conf: Path, content: object, *options: str) -> str:
    before = list(conf.rglob("*.yaml"))
    with pytest.raises(InputError) as stopped:
        run(conf, content, *options)
    assert list(conf.rglob("*.yaml")) == before
    assert "\n" not in str(stopped.value)
    return str(stopped.value)


def tokens_per_s(
    files: tuple[dict[str, Any], dict[str, Any]],
    rows: int,
    weights: float = PARAMETERS,
    bits: float = 8 * SIZE / PARAMETERS,
    arithmetic: str = "int8",
) -> float:
    """Of an emulated pass of a model that is nearly all layers."""
    shape = Shape(100, 1000, 10, 10, 100, round((weights / 100 - 4e6) / 3000), 100, tied=True)
    assert shape.parameters == pytest.approx(weights, rel=1e-3)
    device = EmulatedDevice(machine(with_engine(*files)))
    timer = PassTimer(device, ModelCost(shape, Precision(bits, arithmetic, 2)), (0,))
    return rows / timer.time(rows, 0, last_only=True).seconds


def bandwidth(files: tuple[dict[str, Any], dict[str, Any]], on: str = "cpu") -> dict[str, Any]:
    found: dict[str, Any] = files[0]["processors"][on]["bandwidth"]
    return found


def test_a_file_is_emulated_as_fast_as_it_says(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = run(conf, [PROMPT, ANSWER])
    assert tokens_per_s(files, 512) == pytest.approx(60.0, rel=0.01)
    assert tokens_per_s(files, 1) == pytest.approx(12.0, rel=0.01)
    assert files[0]["name"] == "Some Chip"
    assumed = {fact.path for fact in facts(files[0]) if fact.source == "assumed"}
    assert {"flash.bandwidth", "dram.budget", "processors.cpu.peak.fp32"} <= assumed
    assert "start is assumed" in capsys.readouterr().err


# Passes


@pytest.mark.parametrize(
    ("prompt", "batches", "rows"),
    [
        (513, {}, 512),  # 512 and 1
        (512, {"n_batch": 128, "n_ubatch": 256}, 128),
        (1400, {"n_batch": 700}, 512),  # twice 512 and 188
    ],
)
def test_a_prompt_is_the_passes_that_llama_cpp_makes_of_it(
    conf: Path, prompt: int, batches: dict[str, int], rows: int
) -> None:
    """A machine whose pass of r rows takes 0.1 + r / 100 seconds is found again."""
    batch, most = batches.get("n_batch", 2048), batches.get("n_ubatch", 512)
    took, left = 0.0, prompt
    while left:
        tokens = min(left, batch)
        left -= tokens
        while tokens:
            took += 0.1 + min(tokens, batch, most) / 100
            tokens -= min(tokens, batch, most)
    one = entry(n_gen=10, rate=1 / 0.11, **batches)
    files = run(conf, [entry(n_prompt=prompt, rate=prompt / took, **batches), one])
    assert tokens_per_s(files, rows) == pytest.approx(rows / (0.1 + rows / 100), rel=0.01)


def test_of_prompts_with_equal_passes_the_one_with_fewest_cached_tokens_counts(conf: Path) -> None:
    tests = [PROMPT, entry(n_prompt=4096, rate=40.0), ANSWER, entry(n_gen=512, rate=9.0)]
    files = run(conf, [*tests, entry(n_prompt=512, n_gen=128, rate=20.0)])
    assert tokens_per_s(files, 512) == pytest.approx(60.0, rel=0.01)
    assert tokens_per_s(files, 1) == pytest.approx(12.0, rel=0.01)


def test_two_models_tell_a_pass_s_start_from_its_rate(conf: Path) -> None:
    """0.01 s and 0.02 ns a weight for one row, 0.2 s and 3 ns for 512."""
    tests = []
    for weights in (1e9, 5e9):
        model = {"model_type": f"llama {weights:g} Q4_0", "model_size": weights / 2}
        model |= {"model_n_params": weights}
        tests.append(entry(n_gen=10, rate=1 / (0.01 + 2e-11 * weights), **model))
        tests.append(entry(n_prompt=512, rate=512 / (0.2 + 3e-9 * weights), **model))
    files = run(conf, tests)
    for weights in (1e9, 5e9):
        assert tokens_per_s(files, 1, weights, 4.0) == pytest.approx(1 / (0.01 + 2e-11 * weights), rel=0.01)
        assert tokens_per_s(files, 512, weights, 4.0) == pytest.approx(512 / (0.2 + 3e-9 * weights), rel=0.01)
    assert bandwidth(files)["value"] == pytest.approx(0.5 / 2e-2, rel=0.01)


KNOWN = [
    ("llama 7B Q4_0", 6.738e9, 32 * (4 * 4096**2 + 3 * 4096 * 11008), 4096 * 32000),
    ("llama 7B Q4_0", 7.248e9, 32 * (2.5 * 4096**2 + 3 * 4096 * 14336), 4096 * 32000),  # Mistral
    ("qwen3 0.6B Q4_0", 0.596e9, 28 * (6 * 1024**2 + 3 * 1024 * 3072), 1024 * 151936),
    ("qwen3 0.6B Q4_0", 0.7516e9, 28 * (6 * 1024**2 + 3 * 1024 * 3072), 1024 * 151936),  # its table twice
    ("gemma 2B Q4_0", 2.506e9, 18 * (2.25 * 2048**2 + 3 * 2048 * 16384), 2048 * 256000),
    ("phi2 3B Q4_0", 2.78e9, 32 * (4 * 2560**2 + 2 * 2560 * 10240), 2560 * 51200),
]
"""Names and parameters as llama-bench prints them; weights of layers and head by published configurations."""


@pytest.mark.parametrize(("name", "parameters", "layers", "head"), KNOWN)
def test_a_shape_is_found_by_family_and_count(
    conf: Path, name: str, parameters: float, layers: float, head: float
) -> None:
    """The rate is that of all rows in the layers and of the last one in the head."""
    model = {"model_type": name, "model_size": 0.56 * parameters, "model_n_params": parameters}
    _, engine = run(conf, [entry(n_prompt=512, rate=60.0, **model), entry(n_gen=8, rate=12.0, **model)])
    rate = engine["processors"]["cpu"]["rate"]["int8"]
    assert rate["value"] == pytest.approx(2 * (512 * layers + head) / (512 / 60.0) / 1e9, rel=2e-3)
    assert rate["source"] == "measured"


UNKNOWN = [
    ("llama 3B Q8_0", 2.78e9),  # as many as Phi-2
    ("t5 0.2B Q8_0", 2.23e8),  # what is timed of an encoder and a decoder is not known
    ("some-new-model 7B Q8_0", 6.738e9),
]


@pytest.mark.parametrize(("name", "parameters"), UNKNOWN)
def test_a_count_of_another_family_is_no_shape(
    conf: Path, name: str, parameters: float, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"model_type": name, "model_size": 1.0625 * parameters, "model_n_params": parameters}
    tests = [entry(rate=10.0, **asked, **model) for asked in ({"n_prompt": 512}, {"n_gen": 128})]
    _, engine = run(conf, tests, "--bandwidth", "100")
    assert f"no shape in conf/model/shape has the family and the parameters of {name}:" in (
        capsys.readouterr().err
    )
    rate = engine["processors"]["cpu"]["rate"]["int8"]
    assert rate["source"] == "assumed"
    assert f"all weights in use of {name} count as layers" in rate["note"]


def test_a_shape_of_one_s_own_is_found(conf: Path) -> None:
    """Llama 3.2 1B, in the folder that --conf names."""
    shape = {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "intermediate": 8192}
    (conf / "model" / "shape").mkdir(parents=True)
    text = yaml.safe_dump({**shape, "vocab": 128256, "gated": True, "tied": True})
    (conf / "model" / "shape" / "llama_3_2_1b.yaml").write_text(text, encoding="utf-8")
    model = {"model_type": "llama 1B Q8_0", "model_size": 1.31e9, "model_n_params": 1_235_814_400}
    _, engine = run(conf, [entry(n_prompt=512, rate=60.0, **model), entry(n_gen=8, rate=12.0, **model)])
    operations = 2 * (512 * 16 * (2.5 * 2048**2 + 3 * 2048 * 8192) + 2048 * 128256)
    rate = engine["processors"]["cpu"]["rate"]["int8"]
    assert rate["value"] == pytest.approx(operations / (512 / 60.0) / 1e9, rel=1e-3)
    assert rate["source"] == "measured"


# Settings


@pytest.mark.parametrize(
    ("field", "first", "other"),
    [
        ("n_depth", 0, 4096),
        ("flash_attn", False, True),
        ("n_gpu_layers", 99, 0),
        ("some_new_option", 1, 2),
    ],
)
def test_one_setting_at_a_time_is_used(conf: Path, field: str, first: object, other: object) -> None:
    """The fields differ between tests that would otherwise be repetitions."""
    tests = [entry(n_gen=128, rate=12.0, **{field: first}), entry(n_gen=128, rate=3.0, **{field: other})]
    said = refused(conf, tests)
    assert f"{field}: {str(first).lower()}, {str(other).lower()}" in said
    assert f'--setting "{field}={str(first).lower()}"' in said
    for value, rate in ((first, 12.0), (other, 3.0)):
        assert tokens_per_s(run(conf, tests, "--setting", f"{field}={value}"), 1) == pytest.approx(
            rate, rel=0.01
        )


def test_types_of_weights_with_one_arithmetic_are_settings(conf: Path) -> None:
    eight = {"model_type": "llama 1B Q8_0", "model_size": 1.06e9}
    plain = {"model_type": "llama 1B F16", "model_size": 2.0e9}
    tests = [ANSWER, entry(n_gen=128, rate=6.0, **eight), entry(n_gen=128, rate=3.0, **plain)]
    assert "type: q4_0, q8_0, f16" in refused(conf, tests)
    assert tokens_per_s(run(conf, tests, "--setting", "type=Q8_0"), 1, bits=8.5) == pytest.approx(6, rel=0.01)
    files = run(conf, [ANSWER, tests[2]])
    assert tokens_per_s(files, 1) == pytest.approx(12.0, rel=0.01)
    assert tokens_per_s(files, 1, bits=16.0, arithmetic="fp16") == pytest.approx(3.0, rel=0.01)


def test_threads_are_those_of_the_fastest_generation_or_chosen(conf: Path) -> None:
    two = [entry(n_gen=128, rate=6.0, n_threads=2), entry(n_prompt=512, rate=90.0, n_threads=2)]
    tests = [*two, ANSWER, PROMPT]
    assert tokens_per_s(run(conf, tests), 512) == pytest.approx(60.0, rel=0.01)
    assert tokens_per_s(run(conf, tests, "--threads", "2"), 1) == pytest.approx(6.0, rel=0.01)
    assert tokens_per_s(run(conf, tests, "--setting", "n_threads=2"), 1) == pytest.approx(6.0, rel=0.01)


# Weights that are read, and memory

QWEN = {"model_type": "qwen3moe 30B.A3B Q3_K - Small", "model_size": 10.3e9, "model_n_params": 30.5e9}
MIXTURES = ["llama 8x7B Q4_0", "gpt-oss 20B Q4_0", "llama4 17Bx16E (Scout) Q4_0", "deepseek2 16B Q4_0"]
MIXTURES += ["olmoe A1.7B Q4_0", "arctic 10B+128x3.66B Q4_0", "gemma3n E4B Q4_0", QWEN["model_type"]]


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_needs_its_active_parameters(conf: Path, name: str) -> None:
    """A Raspberry Pi 5 reads 17 GB/s at most; all weights of the mixture at 7.99 tokens/s would be 82."""
    tests = [entry(n_gen=128, rate=7.99, **QWEN | {"model_type": name})]
    assert "--active-parameters" in refused(conf, tests)
    files = run(conf, tests, "--active-parameters", "3.3e9", "--device", "bcm2712")
    assert bandwidth(files)["value"] == pytest.approx(10.3 * 3.3 / 30.5 * 7.99, rel=1e-3)
    assert tokens_per_s(files, 1, 3.3e9, 8 * 10.3 / 30.5) == pytest.approx(7.99, rel=0.01)


def test_a_bandwidth_is_assumed_unless_the_chip_s_is_known(conf: Path) -> None:
    alone, named, given = (
        run(conf, [ANSWER], *o) for o in ((), ("--device", "bcm2712"), ("--bandwidth", "8"))
    )
    assert [bandwidth(files)["value"] for files in (alone, named, given)] == [6.0, 6.0, 6.0]
    assert [bandwidth(files)["source"] for files in (alone, named, given)] == ["assumed", *["measured"] * 2]
    assert [f[0]["dram"]["bandwidth"]["value"] for f in (alone, named, given)] == [6.0, 17.1, 8.0]


def test_a_model_that_a_cache_holds_gives_no_bandwidth(conf: Path) -> None:
    small = {"model_type": "llama 0.1B Q4_0", "model_size": 6.0e7, "model_n_params": 1.2e8}
    tests = [entry(n_gen=128, rate=2000.0, **small)]
    assert "64 MB or more" in refused(conf, tests)
    files = run(conf, tests, "--bandwidth", "17.1")
    assert (bandwidth(files)["value"], bandwidth(files)["source"]) == (17.1, "assumed")
    assert "64 MB or more" in refused(conf, [PROMPT])  # nor does a prompt


# Arithmetic


@pytest.mark.parametrize(
    ("name", "size", "arithmetic"),
    [
        ("qwen3 4B all F32 (guessed)", 0.34e9, "int8"),
        ("llama 7B Q4_1, some F16", 0.62e9, "int8"),
        ("llama 7B IQ3_S mix - 3.66 bpw", 0.46e9, "int8"),
        ("llama 7B BF16", 2.0e9, "fp16"),
        ("llama 7B F16 (guessed)", 4.0e9, "fp32"),
    ],
)
def test_a_type_s_arithmetic_is_what_the_bytes_allow(
    conf: Path, name: str, size: float, arithmetic: str
) -> None:
    _, engine = run(conf, [ANSWER | {"model_type": name, "model_size": size}])
    assert list(engine["processors"]["cpu"]["rate"]) == [arithmetic]


# Processors


@pytest.mark.parametrize(
    ("changed", "on"),
    [
        ({"n_gpu_layers": 99}, "cpu"),  # a build for the CPU
        ({"backends": "BLAS", "n_gpu_layers": 99}, "cpu"),
        (GPU, "gpu"),
        (GPU | {"devices": "none"}, "cpu"),
        (GPU | {"n_gpu_layers": 0, "no_op_offload": 1}, "cpu"),
        (GPU | {"n_gpu_layers": 0, "gpu_info": ""}, "cpu"),
        ({"backends": "BLAS,MTL", "gpu_info": "Apple M2"}, "gpu"),
        ({"backends": "CUDA", "gpu_info": "A, B", "devices": "CUDA1"}, "gpu"),
        ({"backends": "CUDA", "gpu_info": "A, B", "split_mode": "none"}, "gpu"),
        ({"backends": "OpenCL,HTP", "gpu_info": "Adreno, Hexagon", "devices": "HTP0"}, "npu"),
    ],
)
def test_tests_ran_where_llama_cpp_runs_them(conf: Path, changed: dict[str, object], on: str) -> None:
    files = run(conf, [PROMPT | changed, ANSWER | changed])
    assert list(files[0]["processors"]) == list(files[1]["processors"]) == [on]
    assert tokens_per_s(files, 1) == pytest.approx(12.0, rel=0.01)


def test_all_layers_of_a_known_shape_are_one_more_than_its_layers(conf: Path) -> None:
    qwen = {"model_type": "qwen3 4B Q4_0", "model_size": 2.37e9, "model_n_params": 4.02e9}
    assert list(run(conf, [ANSWER | GPU | qwen | {"n_gpu_layers": 37}])[0]["processors"]) == ["gpu"]
    assert "n_gpu_layers is 36" in refused(conf, [ANSWER | GPU | qwen | {"n_gpu_layers": 36}])
    assert list(run(conf, [ANSWER | GPU | qwen | {"n_gpu_layers": 0}])[0]["processors"]) == ["cpu"]


# Forms of output

LOG = "ggml_vulkan: Found 1 devices: {0}\nggml_vulkan: 0 = A [B] | uma: 0\n"
TEXT = json.dumps([PROMPT, ANSWER], indent=1)


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16-le"),
        (LOG + TEXT + "\nmain: done {\n").encode(),
        f"[\n{json.dumps(PROMPT)}\nllama: a line {{x}}\n,{json.dumps(ANSWER)}\n]".encode(),
        "\n".join(json.dumps(t) for t in (PROMPT, ANSWER)).encode(),
        (LOG + TEXT + "done\n").encode("utf-16"),
    ],
)
def test_marks_and_messages_are_read(conf: Path, content: bytes) -> None:
    files = run(conf, content)
    assert tokens_per_s(files, 512) == pytest.approx(60.0, rel=0.01)
    assert tokens_per_s(files, 1) == pytest.approx(12.0, rel=0.01)


def test_options_of_a_file_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("calibrate", ["--quick", "--bandwidth", "17"]) == 2
    assert "--bandwidth goes with --from-llama-bench" in capsys.readouterr().err


# What is refused in one sentence, with no file written

EXPERTS = [entry(n_gen=128, rate=8.0, **QWEN)]
TWO = [*EXPERTS, entry(n_gen=128, **QWEN | {"model_type": "olmoe A1.7B Q3_K - Small"})]
REFUSED: list[tuple[object, str, str]] = [
    # The file
    (b"[{", "", "is no JSON"),
    (b"\xff\xd8\xff", "", "is no text"),
    (
        b"| model |\n| --- |\n| llama 1B Q4_0 |\n",
        "",
        "is no JSON with tests; write it with llama-bench -o json",
    ),
    (TEXT[:-60].encode(), "", "1 of 2 tests are broken off"),
    ([], "", "is no JSON with tests"),
    ({"a": 1}, "", "is no JSON with tests"),
    (b"{" * 200_000, "", "is no JSON with tests"),
    (b'{"a":' * 200_000, "", "is nested too deeply"),
    (b"[" + b" " * (17 << 20), "", "has 17 MB; at most 16 MB are read"),
    # A test in it
    ([entry(n_prompt=8, n_gen=8)], "", "has no test of a prompt"),
    ([{k: v for k, v in ANSWER.items() if k != "avg_ns"}], "", "test 1 lacks avg_ns"),
    ([PROMPT, ANSWER | {"model_type": "llama 1B what"}], "", "test 2: model_type 'llama 1B what'"),
    ([ANSWER | {"avg_ns": "soon"}], "", "avg_ns is 'soon'; it must be a number"),
    ([ANSWER | {"avg_ns": 0}], "", "avg_ns is 0; it must be above 0"),
    ([ANSWER | {"model_size": float("nan")}], "", "it must be finite"),
    ([ANSWER | {"model_type": "llama 1B F16", "model_size": 5e8}], "", "bits a weight"),
    ([ANSWER | {"model_type": "llama 1B Q4_0", "model_size": 2e9}], "", "bits a weight"),
    ([entry(n_gen=128, rate=40.0)], "--device bcm2712", "gives 17.1 GB/s"),
    # Where it ran
    ([PROMPT | GPU | {"n_gpu_layers": 0}], "", "32 rows or more on the gpu even if n_gpu_layers is 0"),
    ([PROMPT | GPU | {"n_gpu_layers": 20}], "", "layers may have stayed on the CPU"),
    ([PROMPT | GPU | {"gpu_info": ""}], "", "gpu_info names no device"),
    ([PROMPT | GPU | {"n_cpu_moe": 8}], "", "n_cpu_moe"),
    ([PROMPT | GPU | {"no_kv_offload": True}], "", "no_kv_offload"),
    ([PROMPT | GPU | {"tensor_buft_overrides": "exps=CPU"}], "", "tensor_buft_overrides"),
    ([PROMPT | GPU | {"gpu_info": "A, B"}], "", "several devices"),
    ([PROMPT | {"backends": "CUDA,RPC", "gpu_info": "A"}], "", "where 'RPC' computes is not known"),
    ([PROMPT | {"backends": "OpenCL,HTP", "gpu_info": "A, B"}], "", "are several processors"),
    # Options
    ([ANSWER], "--setting n_deep=0", "no --setting 'n_deep'. Did you mean n_depth"),
    ([ANSWER], "--setting n_depth=7", "the file has tests of n_depth 0"),
    ([ANSWER], "--threads 3", "--threads 3: the file has tests of 4"),
    ([ANSWER], "--device bcm2713", "there is no device 'bcm2713'. Did you mean bcm2712"),
    ([ANSWER], "--bandwidth 0", "--bandwidth is 0.0; it must be"),
    (EXPERTS, "--active-parameters 31e9", "must be above 0 and below"),
    (EXPERTS, "--active-parameters nan", "must be above 0"),
    (TWO, "--active-parameters 3e9", "is of one model"),
]


@pytest.mark.parametrize(("content", "options", "said"), REFUSED, ids=[said for _, _, said in REFUSED])
def test_what_gives_no_device_is_refused(conf: Path, content: object, options: str, said: str) -> None:
    assert said in refused(conf, content, *options.split())
