"""What is used of Hydra and OmegaConf beyond their documented interface: all of it, and nothing is replaced.

`TRIED_VERSIONS` are those with which it works; with others these imports have to be read again.
"""

from __future__ import annotations

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.utils import get_args_parser
from omegaconf._utils import get_yaml_loader, split_key

__all__ = [
    "FileConfigSource",
    "get_args_parser",
    "get_yaml_loader",
    "set_values",
    "split_key",
]

TRIED_VERSIONS = {"hydra-core": "1.3.8", "omegaconf": "2.3.1"}
"""With 1.4.0rc3 and 2.4.1rc1 nothing is composed: what is taken from `omegaconf._utils` is in `_yaml` and
`_key_path` there, the loader is PyYAML's fast one already, so that `composing` must not add it, and a list of
defaults takes no resolver (`oc.select` in `conf/config.yaml`)."""

set_values = ConfigLoaderImpl._apply_overrides_to_config
"""Sets the values of parsed overrides in a configuration, as the command line does."""
