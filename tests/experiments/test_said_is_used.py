"""What a command says is used or refused, and what others' libraries raise is one sentence.

The cells of experiments are counted in lists of each alone; `mllm_npu/fig1a` has six, all of `llama_cpp_cpu`.
"""

import json
import re
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from repro.experiments import plan
from tiny_project import Project

LIST = "sweep=list"


def process(project: Project, out: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m repro` with these words alone, in a process of its own."""
    command = [*project.command()[:3], *words]
    environment = {**project.environment(), **variables}
    return subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True, encoding="utf-8")


def test_experiments_that_are_swept_have_their_own_cells(project: Project, tmp_path: Path) -> None:
    alone = [project.bare(tmp_path, f"experiment=mllm_npu/{name}", LIST) for name in ("fig1a", "fig1b")]
    both = project.bare(tmp_path, "-m", "experiment=mllm_npu/fig1a,mllm_npu/fig1b", LIST)
    assert both.returncode == 0, both.stderr
    counts = [re.findall(r"\d+ cells", each.stdout)[0] for each in alone]
    assert re.findall(r"^\s*(\d+ cells)", both.stdout, re.MULTILINE) == counts
    assert "chain_sd" not in both.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("probe=outliers", "dataset=wikitext2", "metrics=[nonsense]"), "leave metrics out"),
        (("probe=outliers", "dataset=wikitext2", "method=lever"), "method=lever would change nothing"),
        (("compression=fp16", "dataset=piqa", "max_tokens=3"), "max_tokens=3 would change nothing"),
        (("method=std", "trace=six_apps"), "trace=six_apps would change nothing"),
        (("method=std", "sampling.top_p=0.9"), "at temperature 0"),
        (("-m", "method=std,chain_sd", "repeats=3"), "repeats=3 would change nothing"),
        (("experiment=lever/claims", "prompts=3"), "has no cells"),
        (
            ("experiment=mllm_npu/table4", "method.order=in_order"),
            "mllm_npu has it, and method=mllm_npu method.order=VALUE sets it",
        ),
        (("method=[std,chain_sd]",), "-m method=std,chain_sd"),
        (("method=std", "hydra/launcher=dask"), "add -m"),
        (("-m", "method=std", "hydra/sweeper=nevergrad"), "nevergrad"),
        (("-m", "method=std", "sweep=list,run"), "a sweep has one sweep"),
        (("method=std", "--package", "method"), "--package is for --cfg"),
        (("--cfg", "job", "-m", "method=std,draft"), "exclude each other"),
        (("method=std,draft",), "-m runs a cell for each"),
        (("results=a,b", "method=std"), "quotes make it one"),
        (("-m", "method=std,opt_tree", "method.depth=4"), "method std has no setting 'depth'"),
        (("-m", "method=std", "hydra/launcher=joblib"), "dask"),
        (("-m", "method=std", "hydra/sweeper=basic"), "there is no hydra/sweeper 'basic'. Choices: grid"),
        (("-m", "chain_sd.lenght=2"), "method chain_sd has no setting 'lenght'. Did you mean length"),
        (("-m", "elastilm.nothing=2"), "service elastilm has no setting 'nothing'"),
        (("method=chain_sd", "chain_sd.length=4"), "for one cell write method=chain_sd method.length=4"),
        (("experiment=quickstart", "grid.method=[lever]"), "would come too late"),
        (
            ("experiment=mllm_npu/table4", "mllm_npu.order=in_order"),
            "mllm_npu/table4 has no row for each method, so none for its cells; "
            "method=mllm_npu method.order=in_order changes those of mllm_npu",
        ),
        (
            ("experiment=quickstart", "mllm_npu.order=in_order"),
            "mllm_npu.order holds in the cells with method=mllm_npu, and this sweep has none",
        ),
        (
            ("experiment=mllm_npu/claims", "mllm_npu.order=in_order"),
            "mllm_npu/claims has no cells, so none for mllm_npu.order",
        ),
        (
            ("method=std", "hydra.job.chdir=true"),
            "hydra.job.chdir is true, and every cell would have results",
        ),
        (("method=std", "results=~nobody1234/x"), "begins with the home folder of a user who is not here"),
    ],
)
def test_what_no_cell_uses_is_refused(
    project: Project, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = project.bare(tmp_path, *words, LIST if "sweep" not in " ".join(words) else "prompts=1")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert said in done.stderr
    assert not [*tmp_path.rglob("records")]


def test_a_cell_with_results_of_its_own_is_refused(project: Project, tmp_path: Path) -> None:
    """A sweep's cells lie in its folder, together with its table."""
    done = project.bare(tmp_path, "-m", "method=std,flash_ar", "results=out/${method.name}", LIST)
    assert done.returncode == 1
    assert "results is 'out/std' for this cell and 'out/chain_sd' for its sweep" in done.stderr


def test_a_swept_choice_with_its_setting_is_computed(project: Project, tmp_path: Path) -> None:
    done = project.bare(tmp_path, "-m", "method=lever,opt_tree", "method.depth=4", LIST)
    assert done.returncode == 0, done.stderr
    assert "lever" in done.stdout
    assert "opt_tree" in done.stdout


def test_a_name_in_place_of_a_section_is_explained(project: Project, tmp_path: Path) -> None:
    (tmp_path / "c" / "experiment").mkdir(parents=True)
    (tmp_path / "c" / "experiment" / "mine.yaml").write_text("method: std\n", encoding="utf-8")
    done = project.bare(tmp_path, "--config-dir", "c", "experiment=mine", LIST)
    assert "override /method: std" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("form", [pytest.param("disabled", marks=pytest.mark.slow), "none"])
def test_job_logging_is_hydras(project: Project, tmp_path: Path, form: str) -> None:
    done = process(project, tmp_path, "method=std", f"hydra/job_logging={form}", LIST)
    assert done.returncode == 0, done.stderr


def test_a_short_key_of_wandb(project: Project, tmp_path: Path) -> None:
    done = process(
        project, tmp_path, "method=std", "wandb.mode=online", WANDB_API_KEY="abc", HOME=str(tmp_path)
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "wandb refuses the login" in done.stderr
    assert "wandb.mode=offline" in done.stderr


def test_defaults_of_the_process_change_nothing(project: Project, tmp_path: Path) -> None:
    apart = project.apart(tmp_path)
    before = apart.record("method=chain_sd", "memo=false", "sweep=force").values
    torch.set_default_dtype(torch.float64)
    try:
        assert apart.record("method=chain_sd", "memo=false", "sweep=force").values == before
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_compose_one_after_the_other() -> None:
    seeds: list[int] = []
    jobs = [
        threading.Thread(target=lambda n=n: seeds.append(plan.cell_config(f"seed={n}")["seed"]))
        for n in range(6)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert sorted(seeds) == [*range(6)]
    assert not GlobalHydra.instance().is_initialized()


def test_shorter_prompts_are_said(project: Project, tmp_path: Path) -> None:
    done = project.apart(tmp_path).here("method=std", "prompt_tokens=400")
    assert re.search(
        r"2 of 2 prompts are shorter than prompt_tokens=400, which only cuts: they have \d+ to",
        " ".join(done.stdout.split()),
    )


MINE = '''
from dataclasses import dataclass
from repro.core.registry import register
from repro.methods.speculative.chain_sd import ChainSD

@register("method", "mine")
@dataclass(frozen=True)
class Mine(ChainSD):
    """{words}"""
'''


def test_an_edited_method_of_ones_own_is_said(project: Project, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, text in {
        "owned/__init__.py": "",
        "owned/method.py": MINE.format(words="As it was."),
        "owned-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: owned\nVersion: 0.1\n",
        "owned-0.1.dist-info/entry_points.txt": "[repro.components]\nowned = owned\n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        run = project.apart(tmp_path / "out").command("method=mine", *words)
        return subprocess.run(
            run, cwd=tmp_path, env=project.environment(site), capture_output=True, text=True, encoding="utf-8"
        )

    first, second = command(), command()
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "was edited" not in first.stderr + second.stderr
    (site / "owned" / "method.py").write_text(MINE.format(words="Edited."), encoding="utf-8")
    stale = command()
    assert "source of method mine was edited" in stale.stderr
    assert "sweep=force" in stale.stderr
    assert "was edited" not in command("sweep=force").stderr + command().stderr
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "out").rglob("records/*.jsonl")]
    stored = [json.loads(line.split(" ", 2)[2]) for text in texts for line in text.splitlines()]
    sources = [content["provenance"]["own_sources"] for content in stored if "cell" in content]
    assert {*map(frozenset, sources)} == {frozenset({"method mine"})}
