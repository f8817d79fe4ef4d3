"""Phones and boards by the names that people type, and the one file that a device and its engine come to."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.device_file import machine
from repro.device.engines.engine_file import chip_file, device_file, device_files, device_names
from repro.device.engines.resolved_file import resolved_text
from repro.device.products import PRODUCTS_FILE, file_name, products
from repro.experiments.plan import plain
from repro.records.record import Record
from repro.records.results import open_results
from repro.scenarios.generation.bands import bands_of
from repro.scenarios.registry import made
from tiny_project import Project, composed

COSTS = ("method=std", "model@target=llama_3_2_1b", "prompt_tokens=32", "max_tokens=4", "prompts=1")
"""A cell of costs alone: without weights and datasets."""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder for `--config-dir`."""
    (folder := tmp_path / "conf" / "device").mkdir(parents=True)
    return folder.parent


def scenario(*overrides: str) -> Any:
    return made(plain(composed(*COSTS, *overrides)))


@pytest.mark.parametrize(
    ("name", "chip", "memory", "budget", "label"),
    [
        ("galaxy_s23", "snapdragon_8_gen_2", 8, 6, "Samsung Galaxy S23"),
        ("samsung_galaxy_s26_plus", "snapdragon_8_elite_gen_5", 12, 9, "Samsung Galaxy S26+"),
        ("raspberry_pi_5", "bcm2712", 8, 7.2, "Raspberry Pi 5"),
        ("iphone_15_pro", "a17_pro", 8, 6, "Apple iPhone 15 Pro"),
        ("pixel_8", "google_tensor_g3", 8, 6, "Google Pixel 8"),
    ],
)
def test_a_phone_is_its_chip_with_its_memory(
    name: str, chip: str, memory: float, budget: float, label: str
) -> None:
    phone = scenario(f"device={name}")
    its_chip = scenario(
        f"device={chip}", f"device.dram.capacity.value={memory}", f"device.dram.budget.value={budget}"
    )
    assert phone.key == its_chip.key
    assert phone.key != scenario(f"device={chip}").key
    assert phone.labels["device"] == label


def ran(folder: Path, *words: str) -> dict[str, Record]:
    """The records of a command in a folder of its own, by device."""
    done = Project(folder, folder).bare(folder, *COSTS, "wandb.mode=disabled", *words)
    assert done.returncode == 0, done.stderr
    return {record.labels["device"]: record for record in open_results(folder / "outputs/results").all()}


def test_a_command_runs_on_a_phone_by_its_name(tmp_path: Path) -> None:
    records = ran(tmp_path, "-m", "device=raspberry_pi_5,galaxy_s23,pixel_8")
    assert records.keys() == {"Raspberry Pi 5", "Samsung Galaxy S23", "Google Pixel 8"}
    speeds = {device: record.values["decode_tokens_per_s"] for device, record in records.items()}
    assert speeds["Raspberry Pi 5"] < speeds["Samsung Galaxy S23"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rasberry_pi_5", "there is no device 'rasberry_pi_5'. Did you mean raspberry_pi_5 "),
        ("Galaxy_S23", "there is no device 'Galaxy_S23'. Did you mean galaxy_s23"),
        ("pixel_10", "Google Pixel 10 has the chip Google Tensor G5, of which there is no device file"),
    ],
)
def test_a_name_that_is_none_is_answered_with_those_that_are_like_it(
    name: str, sentence: str, tmp_path: Path
) -> None:
    done = Project(tmp_path, tmp_path).bare(tmp_path, *COSTS, f"device={name}")
    assert done.returncode != 0
    assert done.stderr.startswith(f"error: {sentence}")
    with pytest.raises(InputError, match=sentence):
        device_file(name)


def test_every_device_that_was_measured_on_a_known_chip_has_a_name() -> None:
    """Printed names have more than a name: `Jetson Orin NX 8GB (Advantech)`, `phone, SM8650`."""
    names = {name for name in device_names() if name in device_files() or products()[name].name == name}
    rows = [
        row
        for file in ("phones.csv", "phones_s23.csv")
        for row in csv.DictReader((conf_dir() / "reference" / file).open(encoding="utf-8"))
    ]
    known = {row["device"] for row in rows if chip_file(row["soc"]) in device_files()}
    nameless = {"phone, model not named", "phone, Adreno 830", "phone, Adreno 840"}
    assert {device for device in known if not any(name in file_name(device) for name in names)} == nameless


def test_every_product_is_a_machine_with_a_name_of_its_own() -> None:
    assert not products().keys() & device_files().keys(), "a file would hide the product"
    for name, product in products().items():
        if product.chip_file in device_files():
            phone = machine(device_file(name))
            assert phone.processors == machine(device_file(product.chip_file)).processors
            assert phone.dram_budget <= (product.memory_gb or 64) * 1e9, name


@pytest.mark.parametrize(
    ("device", "engine"),
    [
        ("galaxy_s23", "public"),
        ("raspberry_pi_5", "own"),
        ("iphone_16_pro", "mlx_gpu"),
        ("jetson_orin_nano", "datasheet"),
        ("xiaomi_14", "public"),
        ("oneplus_12", "own"),
    ],
)
def test_the_file_that_is_printed_gives_equal_figures(
    device: str, engine: str, conf: Path, tmp_path: Path
) -> None:
    text = resolved_text(device, engine)
    (conf / "device" / "saved.yaml").write_text(text, encoding="utf-8")
    (of_pair, of_file) = (tmp_path / "pair", tmp_path / "file")
    of_pair.mkdir()
    of_file.mkdir()
    (pair,) = ran(of_pair, f"device={device}", f"engine={engine}", "format=q4_0").values()
    (saved,) = ran(of_file, "--config-dir", str(conf), "device=saved", "format=q4_0").values()
    assert (saved.values, saved.key) == (pair.values, pair.key)
    numbers = [line for line in text.splitlines() if "{value: " in line or "{points: " in line]
    assert len(numbers) > 10
    assert [line for line in numbers if "}  # " not in line] == [], "each says where it is from"
    assert {line.rpartition("}  # ")[2] for line in numbers} >= {
        f"conf/device/{chip_file(str(device_file(device).get('name')))}.yaml"
    }


def test_an_unknown_product_of_a_known_chip_is_one_line(conf: Path, tmp_path: Path) -> None:
    header = "name,product,chip,kind,memory_gb"
    (conf / PRODUCTS_FILE).write_text(
        f"{header}\nmy_phone,My phone,Snapdragon 8 Gen 2,phone,24\n", encoding="utf-8"
    )
    (record,) = ran(tmp_path, "device=my_phone", "--config-dir", str(conf)).values()
    assert record.labels["device"] == "My phone"
    assert record.provenance.config["device"]["dram"]["budget"]["value"] == 18

    (conf / PRODUCTS_FILE).write_text(
        f"{header}\nmy_phone,My phone,Snapdragon 8 Gen 2,phone,much\n", encoding="utf-8"
    )
    refused = Project(tmp_path, tmp_path).bare(tmp_path, "device=my_phone", "--config-dir", str(conf))
    assert refused.returncode == 2
    assert "products.csv, line 2: memory_gb is 'much'; it must be a number from 0 to 1024" in refused.stderr


def test_a_format_without_a_kernel_runs_on_the_cpu_and_its_band_stands_beside_it(tmp_path: Path) -> None:
    words = ("device=galaxy_s23", "engine=llama_cpp_npu", "format=q4_k_m")
    record = ran(tmp_path, *words)["Samsung Galaxy S23"]
    assert "npu has no kernel for the format of the weights; its ops ran on cpu" in record.provenance.notes
    for phase, sentence in zip(("prefill", "decode"), bands_of(record), strict=True):
        assert sentence.startswith(
            f"{phase} on cpu, from rows of this chip: measured values lay 50% within 1."
        )


def test_six_threads_read_a_prompt_slower_than_four_where_the_sixth_is_on_an_efficiency_core(
    tmp_path: Path,
) -> None:
    """A Snapdragon 8 Gen 2 has an X3, four A715 and three A510."""
    speeds = []
    for threads in (4, 6):
        words = (
            "device=galaxy_s23",
            "engine=llama_cpp_cpu",
            f"device.processors.cpu.threads.value={threads}",
        )
        (folder := tmp_path / str(threads)).mkdir()
        record = ran(folder, *words)["Samsung Galaxy S23"]
        speeds.append(record.values["prefill_tokens_per_s"])
    assert 0.5 * speeds[0] < speeds[1] < speeds[0]
