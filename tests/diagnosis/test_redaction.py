"""Nothing secret or personal of a log is shown again."""

from __future__ import annotations

import pytest

from moe_long_context.diagnosis.redact import redact
from moe_long_context.tools import diagnose_failure

from . import make_log

SECRETS = {
    "hf_AbCdEfGhIjKlMnOpQrStUvWx": "token hf_AbCdEfGhIjKlMnOpQrStUvWx given",
    "ghp_0123456789abcdefghij": "remote ghp_0123456789abcdefghij",
    "wandbkey1234": "WANDB_API_KEY=wandbkey1234",
    "hunter2": "password: 'hunter2'",
    "s3cr3t": "https://bob:s3cr3t@git.example.com/x",
    "AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc": "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "nvapi-ABCDEFGH12345678": "nvapi-ABCDEFGH12345678",
    "alice": "/home/alice/code/run.py",
    "secretproject": "s3 path /lustre/secretproject/data/train.bin",
    "bob.builder@corp.example": "mail bob.builder@corp.example",
    "10.20.30.40": "node 10.20.30.40:29500",
    "C:\\Users\\carol": "C:\\Users\\carol\\run\\train.py",
    "MIIEvQIBADANBg": "-----BEGIN PRIVATE KEY----- MIIEvQIBADANBg -----END PRIVATE KEY-----",
}


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_secret_is_removed(secret: str) -> None:
    """Tokens, passwords, keys, addresses, mail, home and project folders."""
    assert secret not in redact(SECRETS[secret])


def test_file_names_and_messages_stay() -> None:
    """What helps stays: the file, the line and the words of the error."""
    assert redact('File "/home/alice/megatron/core/tensor_parallel/cross_entropy.py", line 9') == (
        'File "cross_entropy.py", line 9'
    )


def test_control_characters_and_length_are_bounded() -> None:
    """A terminal escape in a log cannot reach the reader's terminal."""
    assert redact("a\x1b[2Jb\x00c") == "a [2Jb c"
    assert len(redact("x" * 10_000)) == 300


def test_no_secret_of_a_log_is_in_the_answer() -> None:
    """Everything that `diagnose` echoes went through redaction."""
    message = " ".join(SECRETS.values())
    lines = [*make_log.traceback("experts", f"RuntimeError: DeepEP error: timeout (dispatch CPU) {message}")]
    lines += [f"ValueError: {text}" for text in SECRETS.values()]
    answer = diagnose_failure({"model": "deepseek-v3"}, log="\n".join(lines) + "\n").model_dump_json()
    assert [secret for secret in SECRETS if secret in answer] == []
