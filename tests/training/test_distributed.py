"""Two processes on one CPU reach what one process reaches: DDP, FSDP2, and a rank without a single anchor."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch


WORKER = Path(__file__).parent / "rank_worker.py"
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "DSparkLayer",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}


def launch(folder, *, world_size, case="plain", extra=None):
    """Start the ranks and return what rank 0 wrote."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in range(world_size):
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        if world_size > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | (extra or {})
        command = [sys.executable, str(WORKER), str(folder / "run"), str(folder / "seen.pt"), case]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [rank.communicate(timeout=170)[0] for rank in ranks]
    for rank, output in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, output[-3000:]
    return torch.load(folder / "seen.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two steps of four rows each in one process, as 1 row x 4 micro-batches."""
    folder = tmp_path_factory.mktemp("alone")
    worker = WORKER.read_text()
    script = folder / "worker.py"
    script.write_text(worker.replace('"gradient_accumulation_steps": 2', '"gradient_accumulation_steps": 4'))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(WORKER.parent), *sys.path])}
    command = [sys.executable, str(script), str(folder / "run"), str(folder / "seen.pt"), "plain"]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=170)
    return torch.load(folder / "seen.pt", weights_only=True)


def assert_close(one, two, tolerance):
    assert set(one) == set(two)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=tolerance, rtol=0, msg=name)


@pytest.mark.parametrize("extra", [{}, FSDP2], ids=["ddp", "fsdp2"])
def test_two_processes_reach_the_gradients_losses_and_weights_of_one(alone, tmp_path, extra):
    pair = launch(tmp_path, world_size=2, extra=extra)
    assert_close(alone["gradients"][0], pair["gradients"][0], 1e-6)
    for step in range(1, 2):
        for name in ("loss", "loss_ce", "loss_l1", "loss_confidence", "tau", "anchors", "acceptance_1"):
            assert pair["logs"][step][name] == pytest.approx(alone["logs"][step][name], abs=1e-5), name
    assert_close(alone["weights"], pair["weights"], 2e-5)
    assert pair["metrics"]["eval_tau"] == pytest.approx(alone["metrics"]["eval_tau"], abs=1e-4)
    if not extra:
        assert pair["metrics"]["eval_accepted_length"] == alone["metrics"]["eval_accepted_length"]


@pytest.mark.slow
def test_a_rank_without_anchors_does_not_hang_the_others(tmp_path):
    pair = launch(tmp_path, world_size=2, case="empty")
    assert all(torch.isfinite(value).all() for step in pair["gradients"] for value in step.values())
    assert pair["logs"][-1]["anchors"] == 4.0
