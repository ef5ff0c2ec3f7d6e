"""Which parameters which optimizer gets, and that two of them behave as one."""

import pytest
import torch

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.training.optimizers import Joined, build_optimizer
from dspark_hf.training.recipe import build_recipe

from .training_runs import frozen


def train_section(**knobs):
    return build_recipe({"target": {"name_or_path": "tiny"}}, {f"train.{name}": knobs[name] for name in knobs}).train


@pytest.fixture
def trained():
    drafter = frozen(tiny_drafter(tiny_target("qwen3"), bigram=False))
    return {name: value for name, value in drafter.named_parameters() if value.requires_grad}


def test_muon_takes_the_matrices_of_the_body_and_adamw_the_rest(trained):
    optimizer = build_optimizer(trained, train_section(optimizer="muon", weight_decay=0.1))
    muon, adamw = optimizer.param_groups
    names = {id(value): name for name, value in trained.items()}
    matrices = {names[id(value)] for value in muon["params"]}
    assert {"fc.weight", "layers.0.self_attn.q_proj.weight", "layers.1.mlp.down_proj.weight"} <= matrices
    rest = {names[id(value)] for value in adamw["params"]}
    assert matrices | rest == set(trained)
    assert not matrices & rest
    assert {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight", "norm.weight"} <= rest
    assert (muon["lr"], adamw["lr"]) == (0.01, 6e-4)
    assert (muon["weight_decay"], adamw["weight_decay"]) == (0.1, 0.0)


def test_a_muon_step_moves_every_direction_of_a_matrix_alike(trained):
    name = "layers.0.mlp.up_proj.weight"
    before = {each: value.detach().clone() for each, value in trained.items()}
    for value in trained.values():
        value.grad = torch.zeros_like(value)
    torch.manual_seed(0)
    left, values, right = torch.linalg.svd(torch.randn(trained[name].shape), full_matrices=False)
    trained[name].grad = left * torch.logspace(0, -1, len(values)) @ right
    build_optimizer(trained, train_section(optimizer="muon")).step()
    moved = torch.linalg.svdvals((trained[name] - before[name]).detach())
    assert moved[0] / moved[-1] < 2.5  # the gradient's own singular values are 10 apart
    assert all(torch.equal(value, before[each]) for each, value in trained.items() if each != name)


def test_a_schedule_sets_the_rates_of_both(trained):
    optimizer = build_optimizer(trained, train_section(optimizer="muon"))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    optimizer.step()
    schedule.step()
    assert [part.param_groups[0]["lr"] for part in optimizer.parts] == [0.005, 3e-4]


def test_joined_optimizers_step_and_come_back_like_their_parts():
    def pair():
        torch.manual_seed(0)
        return [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(5))]

    def parts(matrix, vector):
        return torch.optim.SGD([matrix], lr=0.1, momentum=0.9), torch.optim.AdamW([vector], lr=0.01)

    def steps(optimizers, parameters, count):
        for _ in range(count):
            for parameter in parameters:
                parameter.grad = parameter.detach().clone()
            for optimizer in optimizers:
                optimizer.step()

    apart, together = pair(), pair()
    steps(parts(*apart), apart, 4)
    joined = Joined(*parts(*together))
    steps([joined], together, 2)
    again = [torch.nn.Parameter(each.detach().clone()) for each in together]
    restored = Joined(*parts(*again))
    restored.load_state_dict(joined.state_dict())
    steps([restored], again, 2)
    for one, other in zip(apart, again, strict=True):
        assert torch.equal(one, other)


def test_muon_is_refused_where_it_cannot_work(trained):
    norms = {name: value for name, value in trained.items() if "norm" in name}
    with pytest.raises(ValueError, match="no matrix of the body"):
        build_optimizer(norms, train_section(optimizer="muon"))
