"""No password and no token is in a record, wherever a user has put it."""

from __future__ import annotations

import json
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampft.errors import InputError
from ampft.runs.folder import RunFolder
from ampft.runs.record import write_record
from ampft.runs.recorded_arguments import recorded_arguments
from ampft.runs.redaction import published_record, redact_secrets
from ampft.text.escaping import without_credentials
from ampft.text.json_io import json_text, json_values

SECRET = "c4n4ryS3cr3t"
KEYS = (
    "token", "access_token", "refresh-token", "id_token", "jwt", "pwd", "password", "passwd",
    "pass", "secret", "client_secret", "api_key", "apikey", "key", "sig", "signature",
    "X-Amz-Signature", "X-Amz-Credential", "auth", "Authorization", "bearer", "session", "sas",
    "code", "session_id", "JWT", "Pwd", "%74oken", "p%77d",
)  # fmt: skip
SCHEMES = ("https", "http", "s3", "ftp", "git+https", "postgresql+psycopg", "hdfs")
LONG = string.ascii_letters + string.digits
TOKENS = (
    f"hf_{LONG[:34]}", f"ghp_{LONG[:36]}", f"gho_{LONG[:36]}", f"github_pat_{LONG[:22]}_{LONG}",
    f"glpat-{LONG[:20]}", "xoxb-1234567890-abcdefghij", "AKIAIOSFODNN7EXAMPLE",
    f"AIza{LONG[:35]}", f"sk-{LONG[:48]}", f"sk-proj-{LONG[:40]}", f"sk-ant-api03_{LONG[:40]}",
    f"npm_{LONG[:36]}", f"pypi-{LONG[:60]}", f"eyJ{LONG[:20]}.{LONG[:30]}.{LONG[:43]}",
)  # fmt: skip
HARMLESS = (
    "https://example.org/a/b.csv?lang=en&page=2#top", "s3://bucket/train.csv", "C:/data/train.csv",
    "user@example.org", "nvidia/mit-b0", "sentence-transformers/all-MiniLM-L6-v2", "a?b=c",
    "hf_test", "sk-learn-digits-and-more", "https://example.org/mail@home/x.csv", "zipcode=12345",
    "https://example.org/?zipcode=12345", "ab" * 32,
)  # fmt: skip

# Any characters that may be in a password, with those that end one in a careless pattern.
around = st.text(st.sampled_from("aZ0@:?#&=%+.-_~!"), max_size=6)


@pytest.mark.slow
@given(st.sampled_from(SCHEMES), st.sampled_from(("://", ":/")), around, around)
def test_no_part_of_a_user_and_password_stays(scheme, slashes, before, after):
    text = f"{scheme}{slashes}{before}{SECRET}{after}@host.org/data.csv"
    assert (
        without_credentials(f"read {text} again")
        == f"read {scheme}{slashes}host.org/data.csv again"
    )


@pytest.mark.slow
@given(st.sampled_from(KEYS), st.sampled_from("?&#;"), st.text(LONG + "-_.%+/:", max_size=5))
def test_no_value_of_a_secret_key_stays(key, separator, more):
    text = f"https://host.org/data.csv?a=1{separator}{key}={SECRET}{more}&b=2"
    cleaned = without_credentials(text)
    assert SECRET not in cleaned
    assert cleaned == f"https://host.org/data.csv?a=1{separator}{key}=REDACTED&b=2"


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("place", ["{}", "user/{}", "a {} b", "{}.csv", "https://host/{}/x?a={}"])
def test_no_known_token_stays(token, place):
    cleaned = without_credentials(place.replace("{}", token))
    assert token[8:] not in cleaned
    assert "REDACTED" in cleaned


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text):
    """Negative control."""
    assert without_credentials(text) == text


def test_no_secret_is_in_the_record(make_record, tmp_path):
    places = [
        f"https://user:{SECRET}@1@host/x",
        f"https://host/x?jwt={SECRET}",
        f"#access_token={SECRET}",
    ]
    token = TOKENS[0]
    record = make_record()
    for text in (*places, token, f"{token}/x"):
        data = replace(record.data, name=text, hub_id=text, notes=(text,), files={text: "ab" * 32})
        model = replace(record.model, name=text, hub_id=text, notes=(text,))
        arguments = {"dataset_name": text, "model_name_or_path": text, "train_file": [text]}
        changed = make_record(
            data=data,
            model=model,
            arguments=arguments,
            reason=text,
            command=["x", "--dataset_name", text],
        )
        with RunFolder(tmp_path / "run", overwrite=True) as folder:
            path = write_record(folder, changed)
        written = json.dumps(json.loads(path.read_text()))
        assert SECRET not in written
        assert token[8:] not in written


def test_a_published_record_has_no_folder_of_this_machine(make_record):
    record = make_record()
    record = make_record(
        command=("/home/jane/bin/ampft", "train"),
        arguments={
            **record.arguments,
            "train_file": "/home/jane doe/a.csv,../jane/b.csv",
            "output_dir": "/scratch/jane/run",
            "label_separator": "/",
            "text_column_names": "a/b",
            "dataset_name": "stanfordnlp/sst2",
        },
        label_names=("/r/cats", "/r/dogs"),
        hardware={"cpu": "a processor"},
        reason="/scratch/jane/run: stopped",
        data=replace(
            record.data,
            name="/home/jane doe/a.csv, ../jane/b.csv",
            files={"/home/jane doe/a.csv": "1", "../jane/b.csv": "2"},
            notes=("/home/jane doe/a.csv: 2 rows",),
            hub_id="stanfordnlp/sst2",
        ),
    )
    found = published_record(record)
    assert "jane" not in json_text(json_values(found))
    assert found.arguments["train_file"] == "a.csv,b.csv"
    kept = ("label_separator", "text_column_names", "dataset_name")
    assert [found.arguments[name] for name in kept] == ["/", "a/b", "stanfordnlp/sst2"]
    assert (found.label_names, found.reason) == (("/r/cats", "/r/dogs"), "run: stopped")
    assert (found.data.files, found.data.notes) == ({"a.csv": "1", "b.csv": "2"}, ["a.csv: 2 rows"])
    assert not found.command
    assert not found.hardware
    assert published_record(found) == found


def test_a_path_that_held_a_token_is_asked_for_again(make_record):
    paths = {"train_file": "train.csv", "test_file": f"/d/{TOKENS[0]}/u.csv"}
    record = make_record(arguments=redact_secrets(paths))
    with pytest.raises(InputError, match=r"^--test_file: .* Give the path again: --test_file PATH"):
        recorded_arguments(record, ["--train_file=t.csv"])
    given_again = recorded_arguments(record, ["--test_file=/d/u.csv"])
    assert (given_again.train_file, given_again.test_file) == ("train.csv", "/d/u.csv")
