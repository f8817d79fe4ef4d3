"""Engines over devices: what replaces what, what does not fit, and that numbers out of range are named."""

from __future__ import annotations

import copy
from math import inf, nan
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import (
    OWN,
    STAND_IN_ENGINES,
    device_file,
    device_with_engine,
    engine_files,
    engine_of,
    read_engine,
    with_engine,
    written_out,
)
from repro.device.op import Op
from repro.records.identity import device_asked
from repro.records.record import content_hash
from tiny_project import composed, plain


def number(value: Any, unit: str = "", **more: Any) -> dict[str, Any]:
    return {"value": value, "unit": unit, "source": "assumed", "note": "invented"} | more


PHONE: dict[str, Any] = {
    "name": "Phone",
    "kind": "emulated",
    "main": "cpu",
    "soc": "Chip 1",
    "processors": {
        "cpu": {
            "peak": {"int8": number(2, "TOP/s"), "fp16": number(1, "TFLOP/s")},
            "efficiency": number(0.5, "share"),
            "bandwidth": number(40, "GB/s"),
            "launch": number(5, "us"),
            "watts": number(3, "W"),
        },
        "npu": {"peak": {"int8": number(30, "TOP/s")}, "bandwidth": number(50, "GB/s")},
    },
    "flash": {"bandwidth": number(4, "GB/s"), "watts": number(1, "W")},
    "dram": {"bandwidth": number(60, "GB/s"), "budget": number(12, "GB"), "capacity": number(16, "GB")},
    "power": {"idle": number(1, "W")},
}


def engine(**parts: Any) -> dict[str, Any]:
    return {"name": "Program", **parts}


def on_cpu(**facts_by_name: Any) -> dict[str, Any]:
    return engine(processors={"cpu": facts_by_name})


def test_a_fact_of_the_engine_replaces_the_device_s() -> None:
    found = machine(with_engine(PHONE, on_cpu(launch=number(80, "us"))))
    assert found.processors["cpu"].launch == pytest.approx(80e-6)
    assert found.processors["cpu"].peak == machine(PHONE).processors["cpu"].peak
    assert found.processors["npu"] == machine(PHONE).processors["npu"]


def test_chip_before_device_and_both_before_what_holds_everywhere() -> None:
    def launch(soc: str, name: str) -> float:
        three = engine(
            processors={"cpu": {"launch": number(1, "s")}},
            devices={
                "Phone": {"processors": {"cpu": {"launch": number(3, "s")}}},
                "Chip 1": {"processors": {"cpu": {"launch": number(2, "s")}}},
            },
        )
        return machine(with_engine({**PHONE, "soc": soc, "name": name}, three)).processors["cpu"].launch

    assert [launch("Chip 1", "Phone"), launch("Chip 1", "Other"), launch("Chip 2", "Other")] == [3, 2, 1]


def test_a_rate_is_what_is_reached_in_the_precisions_that_it_names() -> None:
    cpu = machine(with_engine(PHONE, on_cpu(rate={"int8": number(0.3, "TOP/s")}))).processors["cpu"]
    assert cpu.peak == {"int8": 0.3e12}
    assert cpu.efficiency.at(7) == 1.0
    cpu = machine(with_engine(PHONE, on_cpu(rate={"int8": number(0.25, "share")}))).processors["cpu"]
    assert cpu.peak == {"int8": pytest.approx(0.5e12)}
    curve = {"points": [[1, 0.1], [64, 1.0]], "unit": "share", "source": "assumed", "note": "invented"}
    both = on_cpu(rate={"int8": number(0.25, "share"), "fp16": number(0.5, "TFLOP/s")}, efficiency=curve)
    cpu = machine(with_engine(PHONE, both)).processors["cpu"]
    assert cpu.peak == {"int8": pytest.approx(0.5e12), "fp16": 0.5e12}
    assert (cpu.efficiency.at(1), cpu.efficiency.at(64)) == (0.1, 1.0)


def test_a_share_of_the_bandwidth_is_one_of_the_device_s() -> None:
    found = machine(with_engine(PHONE, on_cpu(bandwidth_share=number(0.5, "share"))))
    assert found.processors["cpu"].bandwidth == pytest.approx(20e9)


def test_an_op_starts_then_computes_and_moves() -> None:
    program = engine(
        processors={
            "cpu": {
                "rate": {"int8": number(1, "TOP/s")},
                "launch": number(1, "ms"),
                "start": {"int8": number(10, "ms")},
                "rows_quadratic": number(0.01),
                "token": number(7, "ms"),
            }
        },
        traffic="added",
    )
    found = machine(with_engine(PHONE, program))
    op = Op("cpu", "layer", "", rows=10, flops=1e9, bytes=40e6, precision="int8", launches=3)
    asked = found.demand(op)
    assert asked.launch == pytest.approx(3 * (1e-3 + 10e-3))
    assert asked.work == pytest.approx(1e-3 * 1.1 + 1e-3)
    head = Op("npu", "head", "", rows=1, flops=1e9, precision="int8")
    here = found.demand(head)
    after_layers_on_cpu = found.demand(head._replace(decoder="cpu"))
    assert after_layers_on_cpu.launch == pytest.approx(here.launch + 7e-3)


def test_an_engine_of_an_older_record_is_still_read() -> None:
    """Its time a token was an entry of its own, for the whole machine."""
    older = engine(processors={"cpu": {"launch": number(1, "us")}}, overhead={"token": number(7, "ms")})
    assert machine(with_engine(PHONE, older)).processors["cpu"].token == 0


def test_a_start_may_grow_with_rows() -> None:
    start = {"int8": number(2, "ms")}
    found = machine(with_engine(PHONE, on_cpu(start=start, start_exponent=number(0.5)))).processors["cpu"]
    one, four = (found.demand(Op("cpu", "layer", "", rows=r, precision="int8")).launch for r in (1, 4))
    assert four - found.launch == pytest.approx(2 * (one - found.launch))
    points = {"points": [[1, 2.0], [9, 10.0]], "unit": "ms", "source": "assumed", "note": "invented"}
    found = machine(with_engine(PHONE, on_cpu(start={"int8": points}))).processors["cpu"]
    assert found.demand(Op("cpu", "layer", "", rows=5, precision="int8")).launch == pytest.approx(6.005e-3)


def test_sessions_address_more_than_one_window() -> None:
    npu = {"sessions": {"count": number(4), "size": number(3.25, "GiB")}}
    found = machine(with_engine(PHONE, engine(processors={"npu": npu})))
    assert found.processors["npu"].addressable == pytest.approx(13 * 2**30)
    assert found.processors["cpu"].addressable == 0


def test_one_constant_power_stands_for_idle_and_busy() -> None:
    found = machine(with_engine(PHONE, engine(power={"constant": number(3.7, "W")})))
    assert found.idle_watts == 3.7
    assert {p.watts for p in found.processors.values()} == {0.0}
    assert found.flash.watts == 0.0
    parts = machine(PHONE)
    assert (parts.idle_watts, parts.processors["cpu"].watts, parts.flash.watts) == (1, 3, 1)


def test_where_tables_are_kept_and_when_is_read() -> None:
    found = machine(with_engine(PHONE, engine(tables="streamed", reads="serial")))
    assert (found.keeps_tables, found.serial_reads) == (False, True)
    assert (machine(PHONE).keeps_tables, machine(PHONE).serial_reads) == (True, False)
    assert EmulatedDevice(found).serial_reads


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"processors": {"gpu": {"launch": number(1, "us")}}}, "runs on gpu, which Phone lacks; it has cpu, npu"),
    ({"programs": {"a": {"gpu": {"launch": number(1, "us")}}}}, "runs on gpu, which Phone lacks"),
    (
        {"devices": {"Tablet": {"reads": "serial"}}},
        r"no numbers for Phone \(soc .*\); it has some for Tablet",
    ),
    ({"processor": {}}, "there is no entry 'processor'. Did you mean processors"),
    ({"devices": {"Phone": {"processor": {}}}}, "engine Program, Phone: there is no entry 'processor'"),
    ({"reads": "slowly"}, "reads is 'slowly'; choose overlapped or serial"),
    ({"devices": 3}, "devices is 3; it must be a mapping"),
    ({"processors": {"cpu": {"launch": 3}}}, "engine Program: processors.cpu.launch: 3 is a bare number"),
    (
        {"processors": {"cpu": {"rate": {"fp32": number(0.5, "share")}}}},
        "add processors.cpu.peak.fp32 to it, or",
    ),
]


@pytest.mark.parametrize(("parts", "message"), WRONG, ids=[message for _, message in WRONG])
def test_an_engine_that_is_wrong_or_does_not_fit_is_named(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        machine(with_engine(PHONE, engine(**parts)))


def test_this_machine_takes_no_engine() -> None:
    local = read_mapping(conf_dir() / "device" / "local_cpu.yaml")
    assert with_engine(local, None) == local
    with pytest.raises(InputError, match="choose engine=own"):
        with_engine(local, on_cpu(launch=number(1, "us")))


def test_a_fact_is_the_same_in_either_file() -> None:
    """So moving one from a device to its engine changes no key."""
    device = copy.deepcopy(PHONE)
    launch = device["processors"]["cpu"].pop("launch")
    moved = with_engine(device, on_cpu(launch=launch))
    assert moved == PHONE
    assert content_hash(device_asked(moved)) == content_hash(device_asked(PHONE))


def test_the_own_engine_is_the_one_that_the_device_names() -> None:
    own = {"name": OWN}
    assert engine_of(PHONE, own) is None
    assert engine_of(PHONE, None) is None
    named = engine_of({**PHONE, "engine": "mllm_baselines"}, own)
    assert named == written_out(read_engine("mllm_baselines"))
    assert engine_of({**PHONE, "engine": "mllm_baselines"}, on_cpu()) == on_cpu()
    with pytest.raises(InputError, match=r"no engine 'lama'"):
        engine_of({**PHONE, "engine": "lama"}, own)
    with pytest.raises(InputError, match=r"no device 'oneplus12'"):
        device_with_engine("oneplus12")


def launches(engine: dict[str, Any]) -> list[float]:
    """Seconds of a launch on the phone's processors."""
    found = machine(with_engine(PHONE, engine)).processors
    return [found[name].launch for name in ("cpu", "npu")]


def test_an_engine_that_extends_another_has_its_numbers_and_own_ones_over_them() -> None:
    base = engine(
        processors={"cpu": {"launch": number(1, "s"), "rate": {"int8": number(1, "TOP/s")}}},
        devices={"Phone": {"processors": {"npu": {"launch": number(2, "s")}}}},
        reads="serial",
    )
    assert launches(base) == [1, 2]
    assert launches(engine(extends=base, processors={"npu": {"launch": number(3, "s")}})) == [1, 3]
    over = engine(extends=base, devices={"Chip 1": {"processors": {"npu": {"launch": number(4, "s")}}}})
    assert launches(over) == [1, 4], "whatever of the first engine is more specific"
    assert launches(engine(extends=over, reads="overlapped")) == [1, 4]
    found = machine(with_engine(PHONE, over))
    assert found.serial_reads
    assert found.processors["cpu"].efficiency.at(1) == 1.0
    tablet = {**PHONE, "name": "Tablet", "soc": "Chip 2"}
    said = r"engine Top has no numbers for Tablet \(soc 'Chip 2'\); it has some for Chip 1"
    with pytest.raises(InputError, match=said):
        with_engine(tablet, {**over, "name": "Top"})


def test_an_engine_that_extends_none_or_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no engine 'lever_serail'\..*Did you mean lever_serial"):
        with_engine(PHONE, engine(extends="lever_serail", reads="serial"))
    files = {"a": engine(extends="b"), "b": engine(extends="c"), "c": engine(extends="b")}
    monkeypatch.setattr("repro.device.engines.engine_file._file", lambda _, name: files[name])
    with pytest.raises(InputError, match="engine Program extends b, which extends it in turn"):
        written_out(files["a"])


def test_what_is_read_may_be_changed() -> None:
    read_engine("mllm_baselines")["devices"].clear()
    assert read_engine("mllm_baselines")["devices"]


def test_a_device_of_a_paper_names_its_engine_and_says_nothing_of_programs() -> None:
    """But the server GPUs, whose programs no paper describes."""
    of_programs = {"launch", "efficiency", "start", "shapes", "slower", "graph_seconds", "rows_exponent"}
    named = 0
    for path in (conf_dir() / "device").glob("*.yaml"):
        device = read_mapping(path)
        if not device.get("papers") or (device["main"] == "gpu" and list(device["processors"]) == ["gpu"]):
            continue
        assert device["engine"] in engine_files(), path.stem
        assert not {"tables", "reads", "traffic"} & set(device), path.stem
        assert not {"sync", "read_ahead"} & set(device["dram"]), path.stem
        for processor in device["processors"].values():
            assert not of_programs & set(processor), path.stem
        named += 1
    assert named == 13


@pytest.mark.parametrize("name", [name for name in engine_files() if name not in STAND_IN_ENGINES])
def test_every_engine_composes_and_fits_a_device(name: str) -> None:
    one = read_engine(name)
    devices = {path.stem: read_mapping(path) for path in (conf_dir() / "device").glob("*.yaml")}
    emulated = {stem: device for stem, device in devices.items() if device["kind"] == "emulated"}
    fits, others = [], []
    for device in emulated.values():
        try:
            fits.append(machine(with_engine(device, one)).name)
        except InputError as wrong:
            others.append(str(wrong))
    assert fits
    assert all("lacks" in wrong or "has no numbers" in wrong for wrong in others), others
    assert plain(composed(f"engine={name}"))["engine"] == one


# --- ranges -------------------------------------------------------------------------------------------------

POSITIVE = [
    ("processors.cpu.peak.int8", "TOP/s"),
    ("processors.cpu.efficiency", "share"),
    ("processors.cpu.bandwidth", "GB/s"),
    ("processors.cpu.tile", "rows"),
    ("processors.cpu.slots", ""),
    ("processors.cpu.threads", ""),
    ("processors.cpu.slower.attention", "x"),
    ("processors.npu.sessions.count", ""),
    ("processors.npu.sessions.size", "GB"),
    ("flash.bandwidth", "GB/s"),
    ("dram.bandwidth", "GB/s"),
    ("dram.budget", "GB"),
    ("dram.capacity", "GB"),
]
NOT_NEGATIVE = [
    ("processors.cpu.launch", "us"),
    ("processors.cpu.start.int8", "ms"),
    ("processors.cpu.start_exponent", ""),
    ("processors.cpu.rows_exponent", ""),
    ("processors.cpu.rows_quadratic", ""),
    ("processors.cpu.watts", "W"),
    ("processors.npu.graph_seconds", "s"),
    ("processors.npu.window", "GB"),
    ("flash.latency", "us"),
    ("flash.watts", "W"),
    ("dram.sync", "us"),
    ("dram.read_ahead", "share"),
    ("processors.cpu.token", "ms"),
    ("power.idle", "W"),
    ("power.constant", "W"),
]


def put(place: str, fact: dict[str, Any]) -> dict[str, Any]:
    """The phone with a fact at a place."""
    device = copy.deepcopy(PHONE)
    *above, last = place.split(".")
    node = device
    for key in above:
        node = node.setdefault(key, {})
    node[last] = fact
    return device


OUTSIDE = [
    *((place, unit, value) for place, unit in POSITIVE for value in (0, -1, nan, inf, True)),
    *((place, unit, value) for place, unit in NOT_NEGATIVE for value in (-1, nan, inf, -inf, False)),
    ("dram.read_ahead", "share", 1.5),
    ("processors.cpu.tile", "rows", 1.5),
    ("processors.npu.shapes", "rows", [1, 0]),
    ("processors.npu.shapes", "rows", []),
]


@pytest.mark.parametrize(("place", "unit", "value"), OUTSIDE)
def test_a_number_out_of_range_is_named_with_its_place(place: str, unit: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"Phone: {place.replace('.', '[.]')}: "):
        machine(put(place, number(value, unit)))


@pytest.mark.parametrize(
    ("place", "unit", "value"),
    [*((*fact, 1) for fact in (*POSITIVE, *NOT_NEGATIVE)), *((*fact, 0) for fact in NOT_NEGATIVE)],
)
def test_a_number_in_range_is_read(place: str, unit: str, value: int) -> None:
    device = put(place, number(value, unit))
    assert [fact.path for fact in facts(device) if fact.path == place] == [place]
    assert machine(device).name == "Phone"


@pytest.mark.parametrize(
    "points",
    [
        [],
        [[8, 0.5], [4, 1.0]],
        [[4, 0.5], [4, 1.0]],
        [[1, 0.5], [8, 0.0]],
        [[1, -0.5]],
        [[1, nan]],
        [[nan, 1]],
        [[-1, 0.5], [8, 1.0]],
        [[0, 0.5], [8, 1.0]],
        [[1, inf]],
        [[1, True]],
    ],
)
def test_a_curve_that_is_none_is_named_with_its_place(points: list[Any]) -> None:
    curve = {"points": points, "unit": "share", "source": "assumed", "note": "invented"}
    with pytest.raises(InputError, match=r"Phone: processors\.cpu\.efficiency: "):
        machine(put("processors.cpu.efficiency", curve))


def test_what_verifies_under_public_engines_may_be_chosen() -> None:
    """Prompts and verification on one processor, decoding and drafting on another; nothing else changes."""
    phone = dict(device_file("xiaomi_14"))
    chosen = {
        "npu, cpu": {"name": "public", "verifies": "npu"},
        "npu, gpu": {**read_engine("mlc_gpu"), "verifies": "npu"},
    }
    for words, engine in chosen.items():
        verifies, main = words.split(", ")
        found = with_engine(phone, engine_of(phone, engine))
        assert (found["verifies"], found["main"]) == (verifies, main)
        without = {key: value for key, value in engine.items() if key != "verifies"}
        assert found == {**with_engine(phone, engine_of(phone, without)), "verifies": verifies}
    with pytest.raises(InputError, match=r"verifies is 'dsp'; .* has cpu, gpu, npu"):
        with_engine(phone, engine_of(phone, {"name": "public", "verifies": "dsp"}))


def test_a_draft_reads_its_prompt_early_under_public_engines_alone() -> None:
    """No paper's engine changes: the word is in none of their files, and not in the key of their cells."""
    phone = dict(device_file("xiaomi_14"))
    assert with_engine(phone, engine_of(phone, {"name": "public"}))["draft_prompt"] == "earliest"
    for name in engine_files():
        assert "draft_prompt" not in read_engine(name), name
    found = with_engine(phone, engine_of(phone, {"name": "own"}))
    assert "draft_prompt" not in found
    assert not machine(found).early_drafts
