"""Checkpoints from the Hugging Face hub: its local cache, and downloads.

Owns the choice of files, and whether the hub is there. Must not know about other sources.
HF_HUB_CACHE, HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN have their usual `huggingface_hub` meaning.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from repro.models.checkpoints.origin import TOKENIZER_PATTERNS, Hub
from repro.models.checkpoints.validate import MEDUSA_FILE, missing_from
from repro.models.checkpoints.weight_files import CONFIG_FILE, read_json
from repro.records.build_cache import Unavailable, require_space

WANTED_FILES = ["*.safetensors", MEDUSA_FILE, "*.json", "*.jinja", *TOKENIZER_PATTERNS]
# Subfolders hold exports for other runtimes; `consolidated` files duplicate the weights.
UNWANTED_FILES = ["*/*", "consolidated*"]
Check = Callable[[Mapping[str, Any]], object]
CONNECT_SECONDS = 5.0
CONVERTER = "SFconvertbot"


def is_offline(offline: bool | None) -> bool:
    """Whether the hub must not be contacted: `offline`, or HF_HUB_OFFLINE if that is None."""
    return constants.is_offline_mode() if offline is None else offline


@cache
def is_reachable() -> bool:
    """Whether the hub responds, asked once a process: on a network that drops packets it takes seconds."""
    if is_offline(None):
        return False
    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=CONNECT_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def may_have_dataset(name: str) -> bool:
    """Whether something of a dataset lies in the local caches of the hub and of `datasets`."""
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME, "datasets"))
    dataset = name.rpartition("/")[2].lower()
    is_prepared = folder.is_dir() and any(dataset in path.name.lower() for path in folder.iterdir())
    return is_prepared or Path(constants.HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}").is_dir()


def cached_snapshot(hub: Hub, tokenizer: bool = True) -> Path | None:
    """The snapshot in the local hub cache if it is complete, else None. Does not use the network."""
    if not Path(constants.HF_HUB_CACHE, f"models--{hub.repo.replace('/', '--')}").is_dir():
        return None
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot = _snapshot(hub, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    return snapshot if missing_from(snapshot, tokenizer) is None else None


def _snapshot(hub: Hub, local_files_only: bool = False) -> Path:
    """The folder of a repository's wanted files, downloaded unless `local_files_only`."""
    from huggingface_hub import snapshot_download  # late: it takes half a second to import

    snapshot = snapshot_download(
        hub.repo,
        revision=hub.revision,
        cache_dir=constants.HF_HUB_CACHE,
        allow_patterns=WANTED_FILES,
        ignore_patterns=UNWANTED_FILES,
        local_files_only=local_files_only,
    )
    return Path(snapshot)


@dataclass(frozen=True)
class HubFacts:
    """What the hub says of a repository: its commit, bytes of the wanted files, whether one must log in."""

    commit: str
    sizes: Mapping[str, int]
    gated: bool


def facts(hub: Hub) -> HubFacts:
    """Ask the hub about a repository; Unavailable as for `download`."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils._paths import filter_repo_objects

    if is_offline(None):
        raise Unavailable("HF_HUB_OFFLINE is set")
    with _reaching_hub():
        info = HfApi().model_info(
            hub.repo, revision=hub.revision, timeout=CONNECT_SECONDS, files_metadata=True
        )
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
    file_names = filter_repo_objects(sizes, allow_patterns=WANTED_FILES, ignore_patterns=UNWANTED_FILES)
    commit, is_gated = getattr(info, "sha", None), getattr(info, "gated", False)
    return HubFacts(
        str(commit or hub.revision or "main"), {name: sizes[name] for name in file_names}, bool(is_gated)
    )


def download(hub: Hub, check: Check = dict) -> Path:
    """Download the snapshot into the hub cache; an interrupted download is resumed.

    Args:
        hub: what to download.
        check: what is done with `config.json` before any other file is downloaded.

    Raises:
        Unavailable: no network, no such repository, no access, or no safetensors in it.
        InputError: not enough disk space.
    """
    from huggingface_hub import hf_hub_download

    sizes = facts(hub).sizes
    with _reaching_hub():
        if not any(name.endswith((".safetensors", MEDUSA_FILE)) for name in sizes):
            raise Unavailable(
                f"{hub.repo} has no safetensors at revision {hub.revision or 'main'}, and pickled weights "
                f"are never loaded; {_advice(hub.repo)}"
            )
        cache = constants.HF_HUB_CACHE
        require_space(Path(cache), sum(sizes.values()), hub.repo)
        if CONFIG_FILE in sizes:
            check(
                read_json(
                    Path(hf_hub_download(hub.repo, CONFIG_FILE, revision=hub.revision, cache_dir=cache))
                )
            )
        return _snapshot(hub)


@contextmanager
def _reaching_hub() -> Iterator[None]:
    """Unavailable, with the first line of the reason, for what goes wrong on the way to the hub."""
    import httpx2

    try:
        yield
    except ImportError as error:
        raise Unavailable(
            "the proxy of ALL_PROXY, HTTPS_PROXY or HTTP_PROXY is a SOCKS proxy, which needs a package: `pip "
            f"install socksio`, or unset it ({error})"
        ) from error
    except (OSError, httpx2.HTTPError) as error:
        raise Unavailable(
            f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no more is known'])[0]}"
        ) from error


def _advice(repo: str) -> str:
    """Advice on getting safetensors: the hub's converter bot may have opened a pull request with them."""
    from huggingface_hub import HfApi

    for request in HfApi().get_repo_discussions(repo, author=CONVERTER, discussion_type="pull_request"):
        if "safetensors" in request.title.lower():
            return f"set its hub.revision to {request.git_reference}, where the hub's converter put them"
    return "convert them to a local folder of safetensors and set its folder"
