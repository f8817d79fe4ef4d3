"""The cells that hold the house still while it is moved: drawn once, computed before and after, compared.

    python studies/move/sample.py draw                             all cells of costs alone, 60 with weights
    python studies/move/sample.py compute OUT.jsonl --data FOLDER  compute them with the code at hand
    python studies/move/sample.py compare OLD.jsonl NEW.jsonl      tokens and counts equal, the rest to 1e-9

`draw` reads the records of c40f672, whose configurations the sample keeps, so that later layouts of results/
do not touch it. `compute` runs on one thread (the sums of a matrix product depend on how threads share it)
and appends, so that a run that was cut short goes on. Use an empty REPRO_CACHE: what is remembered is not
computed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import sys
import time
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAMPLE = HERE / "sample.jsonl.gz"
WEIGHTED = 60
"""Cells that compute with weights."""
STRATA = {
    ("edgellm", "generation"): 8,
    ("lever", "generation"): 8,
    ("ghidorah", "generation"): 8,
    ("mllm_npu", "accuracy"): 5,
    ("mllm_npu", "activations"): 5,
    ("elastilm", "serving"): 6,
    ("elastilm", "activations"): 2,
    ("quickstart", "generation"): 2,
}
"""The fewest weighted cells of a system and scenario."""
RELATIVE = 1e-9


def scenario(config: dict[str, Any]) -> str:
    """What kind of cell a configuration makes."""
    groups = {"compression": "accuracy", "probe": "activations", "service": "serving"}
    return next((name for group, name in groups.items() if config.get(group)), "generation")


def draw(records: Path) -> list[dict[str, Any]]:
    """All costs-only cells, and weighted ones in the order of their keys' hashes: first each stratum's, then
    whatever has a figure that none has yet, then the next until there are enough."""
    found = []
    for path in sorted(records.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        source = record["provenance"]
        if record["status"] == "done" and source["clock"] == "virtual":
            found.append(
                {
                    "key": record["key"],
                    "experiment": record["experiment"],
                    "system": record["experiment"].split("/")[0],
                    "scenario": scenario(source["config"]),
                    "weights": source["weights"],
                    "labels": record["labels"],
                    "config": source["config"],
                    "values": record["values"],
                }
            )
    found.sort(key=lambda cell: hashlib.sha256(cell["key"].encode()).hexdigest())
    costs = [cell for cell in found if cell["weights"] == "none"]
    weighted = [cell for cell in found if cell["weights"] != "none"]
    chosen: list[dict[str, Any]] = []
    wanted = Counter(STRATA)
    for cell in weighted:
        stratum = (cell["system"], cell["scenario"])
        if wanted[stratum]:
            wanted[stratum] -= 1
            chosen.append(cell)
    names = {name for cell in chosen for name in cell["values"]}
    for cell in weighted:
        if not set(cell["values"]) <= names and not cell["experiment"].startswith("elastilm/"):
            names |= set(cell["values"])
            chosen.append(cell)
    for cell in weighted:
        if len(chosen) < WEIGHTED and cell not in chosen:
            chosen.append(cell)
    given = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text(encoding="utf-8"))
    defaults = {name: value for name, value in given.items() if name not in ("defaults", "hydra")}
    for cell in (*costs, *chosen):
        del cell["values"]
        cell["config"] = defaults | cell["config"]  # earlier records lack settings that came later
    return [*costs, *chosen]


def load() -> list[dict[str, Any]]:
    """The drawn cells."""
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compute(out: Path, cells: list[dict[str, Any]], data_dir: str) -> None:
    """Append each cell's outcome to a file, unless it is there."""
    import torch

    torch.set_num_threads(1)
    made, run, generation, host = code()
    answers: list[Any] = []
    serve = generation.serve

    def remembered(*arguments: Any) -> Any:
        found = serve(*arguments)
        answers.extend([[one.request.id, list(one.tokens)] for one in found])
        return found

    generation.serve = remembered
    done = (
        {json.loads(line)["old_key"] for line in out.read_text(encoding="utf-8").splitlines()}
        if out.exists()
        else set()
    )
    for number, one in enumerate(cells):
        if one["key"] in done:
            continue
        config = asked(one["config"]) | {"data_dir": data_dir, "results": "results", "outputs": "outputs"}
        answers.clear()
        began = time.perf_counter()
        line: dict[str, Any] = {name: one[name] for name in ("experiment", "scenario", "weights", "labels")}
        line = {"old_key": one["key"], **line, "host": host}
        try:
            cell = made(config)
            cell.check()
            outcome = run(cell, lambda what, at, of: None)
        except Exception:
            line["error"] = traceback.format_exc()
        else:
            rounds = json.dumps(outcome.rounds, sort_keys=True)
            line |= {
                "key": cell.key,
                "values": dict(outcome.record.values),
                "uncertainty": dict(outcome.record.uncertainty),
                "answers": list(answers),
                "rounds": hashlib.sha256(rounds.encode()).hexdigest(),
            }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")
        took = time.perf_counter() - began
        print(f"{number + 1}/{len(cells)} {one['experiment']} {took:.1f} s", flush=True)


def asked(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of c40f672 under the names that settings have now."""
    if not (ROOT / "studies" / "rekey" / "rename_settings.py").is_file():
        return config
    sys.path.insert(0, str(ROOT))
    from studies.rekey.rename_settings import renamed

    return renamed(config)


def code() -> tuple[Any, Any, Any, dict[str, Any]]:
    """What makes a cell, what runs it, the module whose `serve` answers, and the kind of host.

    Of today's code, or of c40f672's, on which the other side of a comparison is made.
    """
    try:
        from repro.experiments.composing import load_components
        from repro.records.provenance import circumstances
        from repro.scenarios.generation import scenario as run
        from repro.scenarios.registry import made
    except ImportError:
        old = {
            name: import_module(f"repro.{name}") for name in ("kinds", "compute", "run", "core.provenance")
        }
        old["run"].load_components()
        kinds = old["kinds"]
        return kinds.made, kinds.compute, old["compute"], old["core.provenance"].circumstances()["host"]
    load_components()
    return made, lambda cell, told: cell.run(told), run, circumstances()["host"]


def compare(old: Path, new: Path) -> int:
    """Print what differs; returns how many cells do."""
    before, after = ({line["old_key"]: line for line in lines(path)} for path in (old, new))
    count: Counter[str] = Counter()
    for key, one in after.items():
        if key not in before:
            continue
        wrong = list(differences(before[key], one))
        count["different" if wrong else "equal"] += 1
        for sentence in wrong:
            print(f"{one['experiment']} {key[:12]} {' '.join(one['labels'].values())}: {sentence}")
    print(
        f"{count['equal']} equal, {count['different']} different, {len(before) - sum(count.values())} not run"
    )
    return count["different"]


def lines(path: Path) -> list[dict[str, Any]]:
    """The outcomes of a file, which may be compressed."""
    text = (
        gzip.decompress(path.read_bytes()).decode()
        if path.suffix == ".gz"
        else path.read_text(encoding="utf-8")
    )
    return [json.loads(line) for line in text.splitlines()]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What two outcomes of a cell differ in, in sentences."""
    wrong = []
    if one.get("error") or other.get("error"):
        ends = [str(line.get("error", "none")).strip().splitlines()[-1] for line in (one, other)]
        return [] if ends[0] == ends[1] else [f"errors {ends}"]
    if one["host"] != other["host"]:
        wrong.append(f"made on {one['host']} and {other['host']}")
    if one["answers"] != other["answers"]:
        wrong.append("other tokens")
    for what in ("values", "uncertainty"):
        for name in sorted(one[what].keys() | other[what].keys()):
            a, b = one[what].get(name), other[what].get(name)
            if not same(a, b):
                wrong.append(f"{name} {a} -> {b}")
    return wrong


def same(a: Any, b: Any) -> bool:
    """Counts and texts equal, other numbers to a relative 1e-9."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1e-15)
    return bool(a == b)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw")
    run = commands.add_parser("compute")
    run.add_argument("out", type=Path)
    run.add_argument("--data", required=True)
    run.add_argument("--only", choices=("costs", "weights"), help="one half of the sample")
    run.add_argument("--part", default="0/1", help="I/N: every N-th cell from the I-th")
    run.add_argument("--first", type=int, help="so many of them")
    two = commands.add_parser("compare")
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    given = parser.parse_args()
    if given.command == "draw":
        cells = draw(ROOT / "results" / "records")
        with gzip.GzipFile(SAMPLE, "wb", mtime=0) as file:
            file.write("".join(json.dumps(cell, sort_keys=True) + "\n" for cell in cells).encode())
        print(Counter((c["system"], c["scenario"], c["weights"]) for c in cells))
    elif given.command == "compute":
        cells = [
            c for c in load() if given.only is None or (c["weights"] == "none") == (given.only == "costs")
        ]
        part, parts = map(int, given.part.split("/"))
        compute(given.out, cells[part::parts][: given.first], given.data)
    else:
        raise SystemExit(bool(compare(given.old, given.new)))


if __name__ == "__main__":
    main()
