"""The loopback Hub, through the real client."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from dspark_hf.dev.loopback_hub import Fault, LoopbackHub


@pytest.fixture
def api(hub) -> HfApi:
    api = HfApi(endpoint=hub.endpoint)
    api.create_repo("tester/model")
    return api


def add(path: str, text: str) -> CommitOperationAdd:
    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=text.encode())


def commit(api: HfApi, text: str, **options):
    return api.create_commit("tester/model", [add("a.txt", text)], commit_message="change a.txt", **options)


def test_a_pushed_folder_comes_back_byte_for_byte(hub, api, tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "in" / "deep" / "b.bin").write_bytes(bytes(range(256)) * 40)
    api.upload_folder(repo_id="tester/model", folder_path=tmp_path / "in")
    copy = snapshot_download("tester/model", local_dir=tmp_path / "out", endpoint=hub.endpoint)
    assert (tmp_path / "out" / "deep" / "b.bin").read_bytes() == bytes(range(256)) * 40
    assert copy == str(tmp_path / "out")
    assert sorted(hub.repos["tester/model"].files()) == [".gitattributes", "a.txt", "deep/b.bin"]


def test_an_unchanged_file_makes_no_commit(hub, api):
    commit(api, "same")
    commit(api, "same")
    assert len(hub.repos["tester/model"].history()) == 2


def test_branches_hold_their_own_files(hub, api):
    api.create_branch("tester/model", branch="other")
    commit(api, "on main")
    commit(api, "on other", revision="other")
    repo = hub.repos["tester/model"]
    assert repo.files("main")["a.txt"] == b"on main"
    assert repo.files("other")["a.txt"] == b"on other"
    assert {branch.name for branch in api.list_repo_refs("tester/model").branches} == {"main", "other"}


def test_a_pull_request_leaves_main_alone(hub, api):
    info = commit(api, "proposed", create_pr=True)
    assert info.pr_num == 1
    assert "a.txt" not in hub.repos["tester/model"].files("main")
    path = hf_hub_download("tester/model", "a.txt", revision="refs/pr/1", endpoint=hub.endpoint)
    assert Path(path).read_text() == "proposed"


def test_a_stale_parent_commit_is_refused(hub, api):
    stale = commit(api, "1").oid
    commit(api, "2")
    with pytest.raises(HfHubHTTPError) as error:
        commit(api, "3", parent_commit=stale)
    assert error.value.response.status_code == 412


def test_ranges_are_served(hub, api):
    commit(api, "0123456789")
    reply = httpx2.get(f"{hub.endpoint}/tester/model/resolve/main/a.txt", headers={"Range": "bytes=3-5"})
    assert (reply.status_code, reply.text) == (206, "345")
    assert reply.headers["Content-Range"] == "bytes 3-5/10"


def test_large_files_go_through_lfs_when_asked(tmp_path):
    with LoopbackHub(lfs_suffixes=(".bin",)) as hub:
        api = HfApi(endpoint=hub.endpoint)
        api.create_repo("tester/model")
        operation = CommitOperationAdd("w.bin", b"\1" * 5000)
        api.create_commit("tester/model", [operation], commit_message="weights")
        assert hub.repos["tester/model"].resolve().lfs == {"w.bin"}
        assert api.get_paths_info("tester/model", ["w.bin"])[0].lfs.size == 5000
        assert any(line.startswith("PUT /lfs/") for line in hub.requests)


def test_missing_repos_and_revisions_have_their_own_errors(api):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("tester/none")
    with pytest.raises(RevisionNotFoundError):
        api.model_info("tester/model", revision="none")


def test_private_repos_are_hidden_from_strangers(hub):
    HfApi(endpoint=hub.endpoint).create_repo("tester/secret", private=True)
    with pytest.raises(RepositoryNotFoundError):
        HfApi(endpoint=hub.endpoint, token=False).model_info("tester/secret")


def test_new_repos_follow_the_account_when_the_caller_does_not_say():
    with LoopbackHub(private_by_default=True) as hub:
        HfApi(endpoint=hub.endpoint).create_repo("tester/quiet")
        assert hub.repos["tester/quiet"].private


def test_foreign_namespaces_are_refused(hub):
    with pytest.raises(HfHubHTTPError) as error:
        HfApi(endpoint=hub.endpoint).create_repo("somebody/model")
    assert error.value.response.status_code == 403


def test_an_expired_token_is_refused(hub):
    hub.revoked.add("hf_old")
    with pytest.raises(HfHubHTTPError) as error:
        HfApi(endpoint=hub.endpoint, token="hf_old").whoami()
    assert error.value.response.status_code == 401


def test_datasets_load_from_the_loopback_hub(hub):
    import datasets

    api = HfApi(endpoint=hub.endpoint)
    api.create_repo("tester/rows", repo_type="dataset")
    operation = add("train.jsonl", '{"turns": ["a"]}\n{"turns": ["b", "c"]}\n')
    api.create_commit("tester/rows", [operation], commit_message="rows", repo_type="dataset")
    rows = datasets.load_dataset("tester/rows", split="train")
    assert rows["turns"][:] == [["a"], ["b", "c"]]


def test_faults_are_taken_once_and_only_where_they_match(hub, api):
    hub.faults.append(Fault("status", method="POST", path="/commit/", status=503))
    with pytest.raises(HfHubHTTPError):
        commit(api, "1")
    commit(api, "2")
    assert hub.repos["tester/model"].files()["a.txt"] == b"2"


def test_a_dropped_connection_stores_nothing(hub, api):
    hub.faults.append(Fault("drop", path="/commit/"))
    with pytest.raises(httpx2.HTTPError):
        commit(api, "x" * 100_000)
    assert "a.txt" not in hub.repos["tester/model"].files()


def test_a_lost_reply_comes_after_the_work_is_done(hub, api):
    hub.faults.append(Fault("lose_reply", path="/commit/"))
    with pytest.raises(httpx2.HTTPError):
        commit(api, "done")
    assert hub.repos["tester/model"].files()["a.txt"] == b"done"


def test_a_race_makes_the_parent_commit_stale(hub, api):
    hub.faults.append(Fault("race", path="/commit/"))
    with pytest.raises(HfHubHTTPError) as error:
        commit(api, "mine", parent_commit=hub.repos["tester/model"].refs["main"])
    assert error.value.response.status_code == 412


def test_a_slow_answer_is_only_late(hub, api):
    hub.faults.append(Fault("slow", path="/whoami", seconds=0.05))
    start = time.perf_counter()
    assert api.whoami()["name"] == "tester"
    assert time.perf_counter() - start >= 0.05
