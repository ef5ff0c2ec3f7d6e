"""The shipped launch files are what accelerate itself accepts."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig


FILES = sorted((Path(__file__).parents[2] / "recipes" / "accelerate").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_the_file(path):
    config = ClusterConfig.from_yaml_file(str(path))
    assert config.num_processes == 8


def test_sharding_wraps_the_layer_that_the_drafter_has():
    from dspark_hf.models import DSparkDrafter

    content = yaml.safe_load((FILES[0].parent / "fsdp2.yaml").read_text())
    assert content["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] in DSparkDrafter._no_split_modules
