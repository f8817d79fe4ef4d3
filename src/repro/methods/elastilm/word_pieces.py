"""BERT-like encoders through `transformers`: their weights and their word-piece tokenizer.

Owns the opening and the loading of both. Must not know what is built on an encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.methods.elastilm.token_spans import TextSpan
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from repro.models.checkpoints.origin import checkpoint_files, model_file
from repro.models.checkpoints.weight_files import read_config

KINDS = ("bert", "mobilebert")
"""Supported model types: those whose layers take hidden states and a mask."""


def open_encoder(name: str, cache_dir: Path | str | None = None, offline: bool | None = None) -> Path:
    """The folder of an encoder, with `config.json`, `*.safetensors` and a tokenizer.

    Args:
        name: of a file in `conf/model/checkpoint/`, a repository on the hub, or a folder.
        cache_dir: as for `open_checkpoint`.
        offline: as for `open_checkpoint`.

    Raises:
        InputError: there is none of that name, or as for `open_checkpoint`.
    """
    files = checkpoint_files()
    if name in files:
        return open_checkpoint(Checkpoint.from_yaml(files[name]), cache_dir, offline)
    entry = model_file(name)
    if entry is None:
        raise InputError(unknown("encoder", name, files))
    checkpoint = {**entry["checkpoint"], "shares_embeddings_with": None}
    return open_checkpoint(Checkpoint.from_mapping(checkpoint), cache_dir, offline)


def load_encoder(folder: Path) -> nn.Module:
    """Load the encoder in a folder, in fp32 and evaluation mode.

    Raises:
        InputError: its model type is not in `KINDS`, or a tensor is missing.
    """
    import transformers  # late: takes seconds to import

    kind = read_config(folder).get("model_type")
    if kind not in KINDS:
        raise InputError(f"{folder} holds a model of type {kind!r}; an encoder is one of {', '.join(KINDS)}")
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    model, loading_info = transformers.AutoModel.from_pretrained(
        folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True
    )
    if bars:
        transformers.utils.logging.enable_progress_bar()
    if missing := sorted(name for name in loading_info["missing_keys"] if not name.startswith("pooler.")):
        raise InputError(f"{folder} lacks {len(missing)} tensors of its encoder: {missing[0]} first")
    encoder: nn.Module = model.float().eval()
    return encoder


class WordPieces:
    """An encoder's tokenizer.

    Attributes:
        first: id of the token before a text (CLS).
        last: id of the token after a text (SEP).
        padding: id of the padding token.
    """

    def __init__(self, folder: Path) -> None:
        """Open the tokenizer in an encoder's folder."""
        from transformers import AutoTokenizer

        # Callers limit the length, so disable the tokenizer's warning about long texts.
        self._inner: Any = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, model_max_length=1 << 30
        )
        self.first, self.last = int(self._inner.cls_token_id), int(self._inner.sep_token_id)
        self.padding = int(self._inner.pad_token_id)

    def split(self, text: str) -> tuple[list[int], list[TextSpan]]:
        """Ids of a text's word pieces, without CLS and SEP, and the span of each."""
        encoding = self._inner(
            text, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False
        )
        return list(encoding["input_ids"]), [TextSpan(*offsets) for offsets in encoding["offset_mapping"]]
