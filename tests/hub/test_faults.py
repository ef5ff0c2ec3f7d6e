"""Pushes and loads against a Hub that misbehaves: nothing lost, nothing doubled, every failure one clear line."""

from __future__ import annotations

import random

import pytest
from huggingface_hub.errors import HfHubHTTPError

from dspark_hf.dev.loopback_hub import Fault
from dspark_hf.hub import HubError, download, push_drafter
from dspark_hf.hub.commit import Remote
from dspark_hf.hub.retry import ATTEMPTS, LONGEST_WAIT_SECONDS, with_retries


def push(folder, **options):
    return push_drafter(folder, "tester/dspark-tiny", engine_branch=None, **options)


TEMPORARY = {
    "server errors": Fault("status", path="/commit/", status=503, times=3),
    "a rate limit": Fault("status", path="/commit/", status=429, headers={"Retry-After": "7"}, times=2),
    "a connection dropped in the upload": Fault("drop", path="/commit/", times=3),
    "a lost answer": Fault("lose_reply", path="/commit/"),
    "an answer lost twice": Fault("lose_reply", path="/(commit|create)", times=2),
    "another author's commit": Fault("race", path="/commit/", times=2),
    "a slow Hub": Fault("slow", path="/commit/", seconds=0.2),
    "a broken create": Fault("drop", path="/repos/create", times=2),
    "a broken preupload": Fault("drop", path="/preupload/", times=2),
    "unreadable heads": Fault("status", path="/revision/", status=502, times=2),
}


@pytest.mark.parametrize("name", TEMPORARY)
def test_a_push_gets_through_and_makes_one_commit(hub, drafter_folder, no_waiting, name):
    fault = TEMPORARY[name]
    hub.faults.append(Fault(**vars(fault)))
    result = push(drafter_folder)
    repo = hub.repos["tester/dspark-tiny"]
    ours = [commit for commit in repo.history() if commit.title == "Publish drafter"]
    assert len(ours) == 1
    assert result.commit == ours[0].oid
    assert repo.files()["model.safetensors"] == (drafter_folder / "model.safetensors").read_bytes()
    assert hub.faults[0].times == 0


def test_another_author_s_files_survive_the_race(hub, drafter_folder, no_waiting):
    hub.faults.append(Fault("race", path="/commit/"))
    push(drafter_folder)
    files = hub.repos["tester/dspark-tiny"].files()
    assert any(path.startswith("race-") for path in files)
    assert "model.safetensors" in files


def test_the_hub_s_retry_after_is_honoured(hub, drafter_folder, no_waiting):
    hub.faults.append(Fault("status", path="/commit/", status=429, headers={"Retry-After": "7"}))
    push(drafter_folder)
    assert 7.0 in no_waiting


def test_pauses_grow_and_are_bounded(no_waiting):
    calls = []

    def step():
        calls.append(1)
        raise TimeoutFromHub("slow")

    from dspark_hf.hub.retry import httpx

    class TimeoutFromHub(httpx.TimeoutException):
        pass

    with pytest.raises(HubError, match="a/b: no connection to the Hub"):
        with_retries(step, "a/b")
    assert len(calls) == ATTEMPTS
    assert no_waiting == sorted(no_waiting)
    assert max(no_waiting) <= LONGEST_WAIT_SECONDS


def test_a_pull_request_whose_answer_was_lost_is_not_opened_twice(hub, drafter_folder, no_waiting):
    push(drafter_folder)
    (drafter_folder / "eval_results.json").write_text('{"format_version": 1}')
    hub.faults.append(Fault("lose_reply", path="/commit/"))
    result = push(drafter_folder, create_pr=True)
    pulls = [ref for ref in hub.repos["tester/dspark-tiny"].refs if ref.startswith("refs/pr/")]
    assert pulls == ["refs/pr/1"]
    assert result.pull_request.endswith("/discussions/1")


def test_an_interrupted_upload_goes_on_where_it_stopped(hub, drafter_folder, no_waiting, monkeypatch):
    monkeypatch.setattr(hub, "lfs_suffixes", (".safetensors",))
    hub.faults.append(Fault("status", path="/commit/", status=401))
    with pytest.raises(HubError):
        push(drafter_folder)
    push(drafter_folder)
    uploads = [line for line in hub.requests if line.startswith("PUT /lfs/")]
    assert len(uploads) == 1
    assert hub.repos["tester/dspark-tiny"].resolve().lfs == {"model.safetensors"}


def test_a_download_goes_on_after_server_errors(hub, drafter_folder, no_waiting):
    push(drafter_folder)
    hub.faults.append(Fault("status", method="GET", path="/api/models/", status=503, times=2))
    hub.faults.append(Fault("drop", method="GET", path="model.safetensors", times=2))
    folder = download("tester/dspark-tiny")
    assert (folder / "model.safetensors").read_bytes() == (drafter_folder / "model.safetensors").read_bytes()


PERMANENT = {
    "an expired token": ("status", 401, "the access token is missing, expired or revoked"),
    "a token without rights": ("status", 403, "this token may not write there"),
    "a hub that is down": ("status", 503, "the Hub answered 503 again and again"),
    "an endless rate limit": ("status", 429, "the Hub limits the rate of this account"),
    "a dead line": ("drop", 0, "no connection to the Hub"),
    "a refused payload": ("status", 422, "the Hub refused with 422"),
}


@pytest.mark.parametrize("name", PERMANENT)
def test_a_push_that_cannot_succeed_says_so_in_one_line(hub, drafter_folder, no_waiting, name):
    action, status, expected = PERMANENT[name]
    hub.faults.append(Fault(action, path="/commit/", status=status, times=1000))
    with pytest.raises(HubError) as error:
        push(drafter_folder)
    message = str(error.value)
    assert message.startswith("tester/dspark-tiny: ")
    assert expected in message
    assert "\n" not in message
    assert [commit.title for commit in hub.repos["tester/dspark-tiny"].history()] == ["initial commit"]


def test_a_repo_that_does_not_exist_is_one_clear_line(hub, no_waiting):
    with pytest.raises(HubError, match="tester/none: the repo does not exist, or this token may not see it") as error:
        download("tester/none")
    assert "\n" not in str(error.value)


def test_a_mistake_of_ours_is_not_taken_for_the_hub_s(hub):
    with pytest.raises(ZeroDivisionError):
        with_retries(lambda: 1 // 0, "a/b")


def test_fifty_pushes_and_fifty_loads_under_random_faults(hub, drafter_folder, no_waiting):
    dice = random.Random(0)
    kinds = [
        Fault("status", status=503),
        Fault("status", status=429, headers={"Retry-After": "3"}),
        Fault("drop"),
        Fault("lose_reply"),
        Fault("slow", seconds=0.002),
        Fault("race"),
    ]
    hub.choose_fault = lambda method, path: dice.choice(kinds) if dice.random() < 0.05 else None
    failures, pushed, loaded = [], 0, 0
    for number in range(50):
        (drafter_folder / "note.txt").write_text(f"{number}")
        try:
            assert push(drafter_folder, message=f"push {number}").commit is not None
            pushed += 1
        except HubError as error:
            failures.append(str(error))
        try:
            folder = download("tester/dspark-tiny")
            assert (folder / "model.safetensors").read_bytes() == (drafter_folder / "model.safetensors").read_bytes()
            loaded += 1
        except HubError as error:
            failures.append(str(error))
    hub.choose_fault = None
    titles = [commit.title for commit in hub.repos["tester/dspark-tiny"].history()]
    ours = [title for title in titles if title.startswith("push ")]
    assert len(ours) == len(set(ours)), "a push was made twice"
    assert pushed <= len(ours) <= 50
    assert all("\n" not in line and line.startswith("tester/dspark-tiny: ") for line in failures)
    assert pushed + loaded >= 98, failures
    assert hub.repos["tester/dspark-tiny"].files()["note.txt"] == b"49"


def test_the_client_s_error_stays_reachable_behind_ours(hub, drafter_folder, no_waiting):
    hub.faults.append(Fault("status", path="/commit/", status=403))
    with pytest.raises(HubError) as error:
        push(drafter_folder)
    assert isinstance(error.value.__cause__, HfHubHTTPError)


def test_a_branch_that_exists_is_not_made_again(hub, drafter_folder, no_waiting):
    push(drafter_folder)
    remote = Remote("tester/dspark-tiny")
    hub.faults.append(Fault("lose_reply", path="/branch/"))
    remote.create_branch("deepspec")
    assert "deepspec" in hub.repos["tester/dspark-tiny"].refs
