"""Records: what they hold, how they are kept, and that nothing ever breaks or overwrites one."""

import hashlib
import os
from pathlib import Path

import pytest

from records import record
from repro.core import paths
from repro.core.errors import InputError
from repro.records.identity import cell_key
from repro.records.record import Record, write_atomically


class TestRecord:
    def test_comes_back_as_it_was_written(self) -> None:
        kept = record(
            "lever",
            {"speed": 1.25, "calls": 3, "text": "ä", "rouge": None},
            uncertainty={"speed": 0.1, "rouge": (1.0, 2.0)},
            fitted=["speed"],
            memory={"resident_set": 5},
            notes=["a stand-in"],
        )
        assert Record.from_json(kept.to_json()) == kept

    @pytest.mark.parametrize(
        ("name", "value", "unit"),
        [
            ("ttft", -0.25, "s"),
            ("attention_1024", -1.0, "s"),
            ("time_per_token", -6.3e-5, "s/token"),
            ("joules_per_token", -6.3e-5, "J/token"),
            ("decode_joules", -1.0, "J"),
            ("flash_bytes_per_token", -1.0, "GB/token"),
            ("memory_bytes", -1, "GB"),
            ("shadow_bytes", -1.0, "MB"),
            ("decode_tokens", -3, "tokens"),
            ("decode_tokens_per_s", -0.5, "tokens/s"),
            ("verification_width", -1.0, "rows"),
        ],
    )
    def test_a_time_an_amount_and_a_count_cannot_be_negative(
        self, name: str, value: float, unit: str
    ) -> None:
        with pytest.raises(InputError, match=f"'{name}' is {value}, and is shown in {unit};"):
            record("lever", {name: value})
        assert record("lever", {name: 0.0}).done

    @pytest.mark.parametrize(
        "name",
        ["difference", "difference_low", "task_score_difference", "increase", "loss", "extra_memory", "any"],
    )
    def test_a_difference_a_loss_and_an_unknown_value_can(self, name: str) -> None:
        assert record("lever", {name: -0.5}).values == {name: -0.5}
        assert record("lever", {"target_computing": -1e-15}).done, "rounding may leave less than nothing"

    def test_a_metric_of_one_s_own_may_be_signed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "metric").mkdir()
        about = "{heading: Time, definition: a time, unit: s"
        (tmp_path / "metric" / "own.yaml").write_text(
            f"wait: {about}}}\nsaved: {about}, signed: true}}\n", encoding="utf-8"
        )
        monkeypatch.setattr(paths, "_folders_of_packages", lambda: (tmp_path,))
        assert record("lever", {"saved": -1.0}).done
        with pytest.raises(InputError, match=r"'wait' is -1\.0"):
            record("lever", {"wait": -1.0})


class TestKey:
    def test_depends_on_every_part_and_on_no_order(self) -> None:
        base = cell_key({"a": 1, "b": {"c": 2.0}}, {"dataset": "x"}, {"m": 1})
        assert base == cell_key({"b": {"c": 2.0}, "a": 1}, {"dataset": "x"}, {"m": 1})
        others = [
            cell_key({"a": 2, "b": {"c": 2.0}}, {"dataset": "x"}, {"m": 1}),
            cell_key({"a": 1, "b": {"c": 2.0}}, {"dataset": "y"}, {"m": 1}),
            cell_key({"a": 1, "b": {"c": 2.0}}, {"dataset": "x"}, {"m": 2}),
        ]
        assert len({base, *others}) == 4
        whole = '{"asked":{"a":1,"b":{"c":2.0}},"inputs":{"dataset":"x"},"versions":{"m":1}}'
        assert base == hashlib.sha256(whole.encode()).hexdigest()


class TestStore:
    def test_an_interrupted_write_leaves_the_file_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "x.json"
        write_atomically(path, "old")

        def interrupted(_: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, "new")
        assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
        assert path.read_text(encoding="utf-8") == "old"
