"""What a generation cell is asked: a method, its models, its prompts and their device.

Owns the cell's models, prompts, inputs, key and checks. Must not know how requests are answered and measured;
that is in `scenario`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, ClassVar

from repro import data
from repro.core.errors import InputError
from repro.core.registry import discover, lookup
from repro.core.typed import typed
from repro.data.config import builder_of
from repro.device.emulated import Device, EmulatedDevice
from repro.device.local import local_device
from repro.methods.base import Method, Request
from repro.methods.speculative.drafting import heads_fit, interpolated_model
from repro.methods.speculative.drafting.head_model import (
    HeadModel,
    MedusaModel,
    align_vocabularies,
    open_model,
)
from repro.methods.speculative.drafting.heads_fit import FittedHeads
from repro.methods.speculative.drafting.interpolated_model import InterpolatedModel
from repro.metrics.evaluated import code_digest, is_evaluated, stem_of
from repro.models.checkpoints.checkpoint import reads_more_than_messages, require_same_tokenizer
from repro.models.forward.network import NoNetwork
from repro.models.runtime.cuda import cuda_stream, cuda_uuid
from repro.models.runtime.engine import Engine
from repro.models.runtime.model import Model
from repro.models.runtime.placement import Placement
from repro.models.runtime.side_network import SideNetwork
from repro.models.tokens.sampling import Sampling
from repro.records.identity import dataset_asked, device_asked, model_asked, portable_place
from repro.records.provenance import host_kind
from repro.records.record import content_hash
from repro.scenarios.base import (
    COST_VERSIONS,
    WEIGHT_VERSIONS,
    Scenario,
    appended_tokens,
    component,
    component_version,
    metric_versions,
    names_in,
)
from repro.scenarios.compressed_target import CompressedTarget
from repro.scenarios.emulation import COMPUTED_FORMAT, EmulatedCell
from repro.scenarios.generation import draft_calibration, task_scores
from repro.scenarios.generation.draft_calibration import Goal, HeadMatch
from repro.scenarios.offline import corpus_asked
from repro.scenarios.settings import (
    check_cost_only,
    host_of,
    kind_of,
    model_of,
    require_device,
    with_own_weights,
    with_resident,
)

KEY_SETTINGS = ("method", "prompts", "prompt_tokens", "max_tokens", "sampling", "seed", "host", "metrics")
"""Settings that are part of the key unchanged; others enter it in part."""

TARGET_METRICS = ("rouge_l", "rouge_l_tokens", "exact_match")
"""Metrics that compare answers with the target's own."""

TREE_ROOM = 64
"""Fewest cache positions reserved for a token tree, beside prompt and answer."""


_prompt_cache: dict[tuple[str, str, str], list[data.Prompt]] = {}
"""Prompts by rows, dataset and tokenizer: cells of a process that ask for the same ones share them."""


class GenerationCell(Scenario):
    """What a configuration with `method=NAME` asks; see `Scenario`.

    Attributes:
        method: the method.
        models: model configurations by role.
        task_metrics: metrics that score the answers by their task; none unless asked for.
    """

    group: ClassVar[str] = "method"

    def __init__(self, config: Mapping[str, Any]) -> None:
        """See `Scenario`."""
        config, engine = with_own_weights(with_resident(config)), config.get("engine")
        self.method: Method = component("method", config["method"])
        self.cell = EmulatedCell(config, self.method.engine, self.method.format)
        config = self.cell.config
        super().__init__(config)
        self.sampling = typed(Sampling, config["sampling"], "sampling")
        self.method.check(self.sampling)
        self.dataset = data.parse(config["dataset"])
        roles = dict.fromkeys(["target", "draft", *self.places])
        self.models = {role: model_of(config, role) for role in roles}
        for role, model in self.models.items():
            if role != "target" and model.compression:
                raise InputError(
                    f"{role} {model.name} has a compression, and only a target is compressed; leave "
                    f"compression@{role}.compression out"
                )
        section = self.models["target"].compression
        self.compressed = CompressedTarget(config, section) if section else None
        self._drafts: dict[str, Model] = {}
        self.emulated = kind_of(config["device"]) == "emulated"
        method, device = self.method, self.cell.described
        needs = method.clock, method.processors, self.cell.program
        require_device(device, engine, self.name, *needs)
        if self.emulated:
            self._require_rates()
        for name in config["metrics"]:
            discover("repro.metrics")
            if not is_evaluated(str(name)):
                lookup("metric", str(name))
        self.evaluated = [name for name in map(str, config["metrics"]) if is_evaluated(name)]
        self.task_metrics = task_scores.asked_of(config["metrics"], self.dataset)
        if self.cost_only:
            if scoring := [*self.task_metrics, *self.evaluated]:
                raise InputError(
                    f"the target has no checkpoint, hence no answers for {scoring[0]} to score; "
                    "choose a target that has one, or other metrics"
                )
            check_cost_only(config, [self.models[role] for role in self.places])
        self.host = host_of(config, self.emulated)
        self.labels["agreement"] = "matched" if self.match else "native"

    def _require_rates(self) -> None:
        """InputError for a number out of range, or a processor without a rate for a model's arithmetic."""
        machine = self.cell.machine()
        for role, place in self.places.items():
            processors = {place.on or machine.main, place.head, *self.method.computes_on(role)}
            arithmetic = self.models[role].stored.arithmetic
            for processor in sorted(processors & machine.processors.keys()):
                if arithmetic not in (rates := machine.processors[processor].peak):
                    raise InputError(
                        f"{processor} of {machine.name} has no rate for {arithmetic}, in which the {role} "
                        f"{self.models[role].name} computes, and method {self.name} runs it there; choose a "
                        f"model@{role} of another format, or {role}.precision={' or '.join(rates)}"
                    )

    @classmethod
    def labels_of(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """See `Scenario`."""
        labels = names_in(config, "method", "device", "dataset", "target", "draft")
        return labels | {"agreement": "matched" if config.get("calibrate_draft_to") else "native"}

    @property
    def unread(self) -> Mapping[str, str]:
        """See `Scenario`."""
        config, method = self.config, f"method {self.name}"
        unread = {"trace": "only a service has requests"}
        if "draft" not in self.places:
            draft_settings = ("calibrate_draft_to", "draft_calibration", "calibration_prompts")
            unread |= dict.fromkeys(draft_settings, f"{method} takes no draft")
        elif not self.calibrates:
            unread["calibration_prompts"] = "no draft is calibrated"
            if not self.match and config["draft_calibration"] == draft_calibration.CHOICES:
                unread["draft_calibration"] = "calibrate_draft_to is null"
        if self.emulated:
            unread |= dict.fromkeys(("repeats", "cooldown"), "an emulated run is the same each time")
        else:
            unread |= dict.fromkeys(("engine", "host", "format"), "a real device computes by itself")
        formats = {config[role].get("precision") for role in ("target", *self.places)}
        if config["format"] not in (None, COMPUTED_FORMAT, *formats):
            unread["format"] = f"the models' files name theirs: {', '.join(map(str, formats))}"
        if "target" not in self.places and "resident" not in config["method"]:
            unread["resident"] = f"{method} places no target"
        if self.sampling.greedy:
            unread["sampling.top_p"] = "at temperature 0 the likeliest token is taken"
        if not (self.compressed and self.compressed.calibrated):
            unread["corpus"] = "nothing is calibrated on it"
        if self.cost_only:
            unread["skip"] = "without a checkpoint no row is read"
        return unread

    @property
    def component(self) -> Method:
        """See `Scenario`."""
        return self.method

    @cached_property
    def places(self) -> Mapping[str, Placement]:
        """Placements of the method's models, by role; the target's as the run's `resident` says."""
        places, resident = self.method.places(), self.config.get("resident")
        if resident is None or "target" not in places:
            return places
        if self.method.alters_target:
            raise InputError(
                f"method {self.name} streams all layers of a target of its own; leave resident={resident} out"
            )
        return {**places, "target": replace(places["target"], resident=resident, policy="share")}

    @cached_property
    def match(self) -> Goal | HeadMatch | None:
        """The published value to calibrate the draft to; None if not requested or without a draft."""
        if self.config["calibrate_draft_to"] is None or not self.config["draft_calibration"]:
            if self.config["draft_calibration"] == draft_calibration.WEIGHTS and "draft" in self.places:
                raise InputError(
                    "draft_calibration is weights: such a draft agrees as often as calibrate_draft_to "
                    "says, which is null; give it, such as calibrate_draft_to=0.8"
                )
            return None
        goal = draft_calibration.goal_of(self.config["calibrate_draft_to"])
        if "draft" not in self.places:
            return None
        draft_calibration.require_matchable(self.emulated, self.sampling, self.models)
        return goal

    @cached_property
    def trees(self) -> FittedHeads | None:
        """Published accuracies of the draft's heads, by which their trees are searched.

        None if the heads compute as they are and have ranks of their own, or if no setup names accuracies.
        """
        if isinstance(self.match, HeadMatch):
            return self.match.trees
        names = self.config["calibrate_draft_to"]
        draft = self.model("draft") if isinstance(names, list) and "draft" in self.places else None
        if not isinstance(draft, MedusaModel) or draft.ranks:
            return None
        return draft_calibration.head_match(names).trees

    @property
    def calibrates(self) -> bool:
        """Whether calibrating the draft needs calibration prompts."""
        return isinstance(self.match, Goal)

    @property
    def interpolates(self) -> bool:
        """Whether the draft is made of the target's weights."""
        return self.calibrates and self.config["draft_calibration"] == draft_calibration.WEIGHTS

    @cached_property
    def target(self) -> Model:
        """The target model, compressed if asked for; its checkpoint is fetched if necessary."""
        target = open_model(self.models["target"], host=self.host)
        if self.compressed:
            target.alter(self.compressed.alteration(target, self.config.get("data_dir")))
        return target

    @property
    def draft(self) -> Model:
        """The draft model; the first one if there are several."""
        return self.model("draft")

    def model(self, role: str) -> Model:
        """A model by role; all roles except `target` are drafts."""
        if role == "target":
            return self.target
        if role not in self._drafts:
            model = open_model(self.models[role], embeddings_from=self.target, host=self.host)
            if role == "draft" and self.interpolates:
                model = InterpolatedModel(self.target, model, seed=self.config["seed"])
            self._drafts[role] = model
        return self._drafts[role]

    def take_share(self, share: float) -> None:
        """Let the draft of the target's weights have its random weights at a share."""
        assert isinstance(self.draft, InterpolatedModel)
        self._drafts["draft"] = self.draft.at(share)

    @property
    def plain_metrics(self) -> list[str]:
        """The metrics asked for that do not score answers by their task."""
        answer_metrics = {task_scores.MAIN_SCORE, *self.task_metrics, *self.evaluated}
        return [name for name in self.config["metrics"] if name not in answer_metrics]

    @property
    def computes_otherwise(self) -> bool:
        """Whether answers are not of the method's own arithmetic."""
        name = self.compressed.name if self.compressed else ""
        return bool(self.method.arithmetic) and name != self.method.arithmetic_by

    @property
    def cost_only(self) -> bool:
        """True if the target has no checkpoint: a cost-only run on dummy prompts."""
        return self.models["target"].checkpoint is None

    @cached_property
    def rows(self) -> data.Rows:
        """The dataset's examples in use; empty for a cost-only run."""
        if self.cost_only:
            return data.Rows((), "none", "nowhere")
        skip, count = self.config["skip"], self.config["prompts"]
        return data.rows_in_use(self.dataset, skip, count, self.config.get("data_dir"))

    @cached_property
    def calibration_rows(self) -> data.Rows:
        """The calibration examples: the last ones, or of swapped choices those after the ones in use.

        Raises:
            InputError: there are too few.
        """
        skip, count = self.config["skip"] + self.config["prompts"], self.config["calibration_prompts"]
        folder = self.config.get("data_dir")
        if self.interpolates:
            skip = max(skip, len(data.load_rows(self.dataset, data_dir=folder).rows) - count)
        rows = data.load_rows(self.dataset, skip + count, folder)
        if len(rows.rows) < skip + count:
            raise InputError(
                f"dataset {self.dataset.name!r} has {len(rows.rows)} rows, and rows {skip} to "
                f"{skip + count - 1} were asked for: calibrate_draft_to needs more rows; lower prompts or "
                "calibration_prompts"
            )
        return data.rows_after(self.dataset, rows, skip)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Content hashes of the cell's inputs, by name."""
        hashes = {role: self.model(role).digest for role in ("target", *self.places)}
        if isinstance(draft := self._drafts.get("draft"), InterpolatedModel):
            hashes["draft"] = draft.billed.digest  # its shape; the weights follow from target and calibration
        for role, place in self.places.items():
            if place.beside and isinstance(side := place.beside(self.model(role)), SideNetwork):
                hashes[f"{role} {side.kind}"] = side.digest
        hashes |= {f"metric {stem_of(name)}": code_digest(name) for name in self.evaluated}
        if self.trees:
            hashes["head accuracies"] = content_hash(heads_fit.published_accuracies())
        if self.calibrates:
            hashes["calibration"] = self.calibration_rows.digest
        if not self.emulated:
            hashes["machine"] = content_hash(host_kind())
        if self.dataset.chat and self.target.folder and reads_more_than_messages(self.target.folder):
            hashes["prompts"] = content_hash([tokens for _, tokens in self._prompts(self.rows)])
        return {**hashes, **appended_tokens(self.target), "dataset": self.rows.digest}

    @cached_property
    def asked(self) -> dict[str, Any]:
        """See `Scenario`."""
        trees = None if self.match else self.trees
        return self._settings | ({"trees": {**trees.request, "version": heads_fit.VERSION}} if trees else {})

    @property
    def decisive_settings(self) -> dict[str, Any]:
        """See `Scenario`: of trees what names accuracies, since the heads alone say whether they count."""
        names = None if self.match else self.config["calibrate_draft_to"]
        return self._settings | ({"calibrate_draft_to": names} if isinstance(names, list) else {})

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """What is asked, without trees."""
        settings = {name: self.config[name] for name in KEY_SETTINGS}
        if self.evaluated:
            settings["metrics"] = [portable_place(str(name)) for name in self.config["metrics"]]
        settings |= {role: model_asked(self.config[role]) for role in dict.fromkeys(["target", *self.places])}
        if self.places != self.method.places():
            settings["resident"] = self.config["resident"]
        settings["device"] = device_asked(self.cell.described)
        settings["dataset"] = None if self.cost_only else dataset_asked(self.config["dataset"])
        if not self.emulated:
            settings |= {name: self.config[name] for name in ("repeats", "cooldown")}
        if self.match:
            match = self.match
            settings["match"] = match.request if isinstance(match, HeadMatch) else asdict(match)
        if self.calibrates:
            settings["calibration"] = self.config["calibration_prompts"]
            settings["confidences"] = self.config["draft_calibration"] != draft_calibration.CHOICES
        if self.interpolates:
            settings["draft made of"] = "the target's weights"
        if self.compressed and self.compressed.calibrated:
            settings["corpus"] = corpus_asked(self.config["corpus"])
        if self.task_metrics:
            settings["score"] = self.config["dataset"]["scoring"]["score"]
        return settings

    @cached_property
    def versions(self) -> dict[str, int]:
        """Versions of the components that decide the outcome, by name."""
        target_metrics = () if self.cost_only else TARGET_METRICS
        versions = {"scenario generation": self.version}
        versions |= component_version("method", str(self.config["method"]["name"]))
        versions |= component_version("compression", self.compressed.name) if self.compressed else {}
        versions |= {"draft calibration": draft_calibration.VERSION} if self.calibrates else {}
        versions |= {"fit of heads": heads_fit.VERSION} if isinstance(self.match, HeadMatch) else {}
        versions |= {"interpolated weights": interpolated_model.VERSION} if self.interpolates else {}
        metrics = [*map(str, self.config["metrics"]), *self.task_metrics]
        metrics = [name for name in metrics if not is_evaluated(name)]
        versions |= metric_versions([self.method.round_metric, *target_metrics, *metrics])
        return versions | COST_VERSIONS | WEIGHT_VERSIONS

    @property
    def origin(self) -> dict[str, Any]:
        """See `Scenario`."""
        models = [self.model(role) for role in self.places]
        kinds = {model.weights for model in models}
        return {
            "clock": "virtual" if self.emulated else "wall",
            "weights": next(kind for kind in ("proxy", "none", "real") if kind in kinds),
            "costs": "predicted" if self.emulated else "measured",
            "fitted": tuple(sorted(self.fitted_cells)),
            "dequantized": any(model.is_dequantized for model in models),
        }

    @property
    def fitted_cells(self) -> set[str]:
        """Ids of the published values that the device and its engine were fitted to."""
        return self.cell.fitted_cells if self.emulated else set()

    @cached_property
    def requests(self) -> list[Request]:
        """The prompts as requests."""
        return self._requests(self.rows)

    @cached_property
    def calibration(self) -> list[Request]:
        """The calibration prompts; empty if none are needed."""
        return self._requests(self.calibration_rows) if self.calibrates else []

    def _requests(self, rows: data.Rows) -> list[Request]:
        return [
            Request(
                id=name,
                prompt=tokens,
                max_tokens=self.config["max_tokens"],
                stop=frozenset() if self.cost_only else self.target.tokenizer.eos_ids,
                sampling=self.sampling,
                seed=self.config["seed"] + i,
            )
            for i, (name, tokens) in enumerate(self._prompts(rows))
        ]

    def _prompts(self, rows: data.Rows) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Ids and tokens: the last `prompt_tokens` of each prompt, or dummy tokens in a cost-only run."""
        prompt_limit = self.config["prompt_tokens"]
        if self.cost_only:
            blank_prompt = (0,) * prompt_limit
            yield from ((f"blank/{i}", blank_prompt) for i in range(self.config["prompts"]))
            return
        key = (rows.digest, content_hash(dataset_asked(self.config["dataset"])), self.target.digest)
        if key not in _prompt_cache:
            _prompt_cache[key] = data.prompts(self.dataset, rows, self.target.tokenizer)
        for prompt, row in zip(_prompt_cache[key], rows.rows, strict=True):
            if builder_of(self.dataset).is_empty(row):
                raise InputError(f"prompt {prompt.id} is empty, so nothing is asked; leave its row out")
            yield prompt.id, tuple(prompt.token_ids[-prompt_limit:] if prompt_limit else prompt.token_ids)

    def check(self) -> None:
        """See `Scenario`: kinds of drafts, tokenizers, context lengths, memory."""
        if self.method.companion == "medusa" and not self.draft.model_cost.shape.medusa:
            raise InputError(
                f"{self.draft.config.name} has no Medusa heads, with which method {self.name} drafts; choose "
                "model@draft=smollm2_135m_medusa"
            )
        for role in self.places:
            if role != "target" and not self.cost_only:
                require_same_tokenizer(self.target.tokenizer, self.model(role).tokenizer)
            if isinstance(self.model(role), HeadModel) and "target" not in self.places:
                raise InputError(
                    f"{self.model(role).config.name} drafts from what its target computes, and method "
                    f"{self.config['method']['name']} runs no target; choose another draft"
                )
            self._check_context(role)
        align_vocabularies((self.target, *map(self.model, self.places)))
        if isinstance(self.match, HeadMatch):
            draft_calibration.require_heads(self.match, self.draft)
        device = self.open_device()
        try:
            for role, place in self.places.items():
                model = self.model(role)
                self.method.variant(role, model, device)
                is_plain = model.weights == "real" and not model.encoder_decoder and not model.config.rounded
                if not self.emulated and not is_plain:
                    model.local_session(role, device, place)
            for role, place in last("target", self.places):
                model = self.model(role)
                Engine(
                    role, device, model.model_cost, NoNetwork(), place, token_count=self.tokens(role)
                ).reserve()
        finally:
            device.close()

    def _check_context(self, role: str) -> None:
        model = self.model(role)
        longest_prompt = max(len(r.prompt) for r in (*self.requests, *self.calibration))
        tokens, max_positions = model.positions(longest_prompt, self.config["max_tokens"])
        if max_positions is not None and tokens > max_positions:
            raise InputError(
                f"{tokens} tokens of prompt and answer do not fit the context of {role} "
                f"{model.config.name}, {max_positions} tokens"
            )

    def tokens(self, role: str) -> int:
        """Capacity of a model's key-value cache in tokens."""
        prompt_length, answer_length = (
            max(len(r.prompt) for r in self.requests),
            int(self.config["max_tokens"]),
        )
        return prompt_length + answer_length + max(TREE_ROOM, self.method.look_ahead(role, answer_length))

    def open_device(self) -> Device:
        """Create a device from the device file and the engine."""
        if self.emulated:
            return EmulatedDevice(self.cell.machine())
        return local_device(self.config["device"], cuda_stream(), cuda_uuid())


def last(role: str, places: Mapping[str, Placement]) -> list[tuple[str, Placement]]:
    """Roles and placements with `role` last: the target gets the memory that the drafts leave."""
    return sorted(places.items(), key=lambda item: item[0] == role)
