"""Records: what they hold, how they are kept, and that nothing ever breaks or overwrites one."""

import hashlib
import os
import platform
import subprocess
from pathlib import Path

import pytest

from records import provenance, record
from repro.core import paths
from repro.core.errors import InputError
from repro.core.version import git_state
from repro.records.identity import cell_key
from repro.records.provenance import PACKAGES, circumstances, peak_resident_bytes, source_hash
from repro.records.record import Record, write_atomically
from repro.records.store import Store


class TestRecord:
    def test_json_round_trip(self) -> None:
        kept = record(
            "lever",
            {"speed": 1.25, "calls": 3, "text": "ä", "rouge": None},
            uncertainty={"speed": 0.1, "rouge": (1.0, 2.0)},
            fitted=["speed"],
            memory={"resident_set": 5},
            notes=["a stand-in"],
        )
        assert Record.from_json(kept.to_json()) == kept
        assert Record.from_json(kept.to_json()).to_json() == kept.to_json()

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), [1], object()])
    def test_a_value_is_a_finite_number_or_text(self, value: object) -> None:
        with pytest.raises(InputError, match="'speed'"):
            record("lever", {"speed": value})  # type: ignore[dict-item]

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

    def test_rounding_may_leave_less_than_nothing(self) -> None:
        assert record("lever", {"target_computing": -1e-15}).done

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

    def test_memory_cannot_be_negative(self) -> None:
        with pytest.raises(InputError, match="memory 'resident_set' is -5 bytes"):
            record("lever", {}, memory={"resident_set": -5})

    def test_bad_fields_are_named(self) -> None:
        with pytest.raises(InputError, match="'finished'; choices: done, failed"):
            record("lever", {}, status="finished")
        with pytest.raises(InputError, match="'not hex'"):
            record("lever", {}, key="not hex")
        with pytest.raises(InputError, match="clock is 'sun'; choices: virtual, wall"):
            provenance(clock="sun")
        with pytest.raises(InputError, match="failed cannot have error=None"):
            record("lever", {}, status="failed")


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

    def test_a_source_hash_covers_the_project_and_a_package_beside_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        package = tmp_path / "mine"
        package.mkdir()
        (package / "method.py").write_text("X = 1\n", encoding="utf-8")
        source_hash.cache_clear()
        first = source_hash("mine")
        assert len({first, source_hash("repro"), source_hash()}) == 2
        (package / "method.py").write_text("X = 2\n", encoding="utf-8")
        source_hash.cache_clear()
        assert source_hash("mine") != first

    def test_a_package_without_source_is_named(self) -> None:
        with pytest.raises(InputError, match="'no_such'"):
            source_hash("no_such")


class TestStore:
    def test_a_folder_that_cannot_be_written_is_an_error_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("", encoding="utf-8")
        with pytest.raises(InputError, match=r"file/records.*choose another folder"):
            Store(tmp_path / "file").check_writable()
        with pytest.raises(InputError, match="MB free and the run needs"):
            Store(tmp_path).check_writable(min_bytes=1 << 62)
        Store(tmp_path).check_writable(min_bytes=1000)
        assert list((tmp_path / "records").iterdir()) == []

    @pytest.mark.skipif(
        not Path("/proc/self").exists(), reason="needs a file system that is read-only to all"
    )
    def test_a_read_only_folder_is_an_error_at_once(self) -> None:
        with pytest.raises(InputError, match="results cannot be written to /proc/records"):
            Store("/proc").check_writable()

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


class TestProvenance:
    def test_circumstances(self) -> None:
        found = circumstances()
        assert set(PACKAGES) < set(found["packages"])
        assert found["packages"]["python"] == platform.python_version()
        assert found["host"]["cores"] >= 1
        assert not any(os.uname().nodename in str(value) for value in found["host"].values())
        assert peak_resident_bytes() > 1 << 20

    def test_git_state_counts_code_and_not_results(self, tmp_path: Path) -> None:
        def git(*arguments: str) -> str:
            identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
            done = subprocess.run(
                ["git", "-C", str(tmp_path), *identity, *arguments],
                check=True,
                capture_output=True,
                text=True,
                encoding="utf-8",
            )
            return done.stdout.strip()

        assert git_state(tmp_path) == (None, None)
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "a.py").write_text("", encoding="utf-8")
        git("init", "-q")
        git("add", ".")
        git("commit", "-qm", "one")
        commit = git("rev-parse", "HEAD")
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "r.json").write_text("{}", encoding="utf-8")
        assert git_state(tmp_path) == (commit, False)
        assert git_state(tmp_path / "src") == (None, None)
        (tmp_path / "src" / "b.py").write_text("", encoding="utf-8")
        assert git_state(tmp_path) == (commit, True)
