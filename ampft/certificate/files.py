"""The files of a certificate in the folder of its artifact, and two certificates side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ampft.certificate.findings import Certificate
from ampft.certificate.report import (
    PAGE_NAME,
    card_section,
    certificate_json,
    headline,
    page,
)
from ampft.errors import InputError
from ampft.export.manifest import CARD_NAME, CERTIFICATE_NAME, read_manifest, write_manifest
from ampft.files import describe_file, write_text
from ampft.text.escaping import code

SAME_METRIC = 1e-9


def write_certificate(folder: Path, certificate: Certificate) -> None:
    """Write certificate.json, certificate.html and the section of the model card, each atomically.

    Raises:
        InputError: A file cannot be written.
    """
    manifest = read_manifest(folder)
    card = folder / CARD_NAME
    title = f"# {code(certificate.name)} of {code(certificate.comparison.title)}\n"
    before = card.read_text(encoding="utf-8") if card.is_file() else title
    texts = {
        CERTIFICATE_NAME: certificate_json(certificate),
        PAGE_NAME: page(certificate),
        CARD_NAME: f"{before.rstrip()}\n\n{card_section(certificate)}\n",
    }
    try:
        for name, text in texts.items():
            write_text(folder / name, text)
    except OSError as error:
        raise InputError(
            f"--output_dir {folder}: the certificate cannot be written ({error.strerror}). Free "
            "disk space, and export again."
        ) from error
    if CARD_NAME in manifest.files:
        files = {**manifest.files, CARD_NAME: describe_file(card)}
        write_manifest(folder, replace(manifest, files=files))


def differences(stored: Certificate, found: Certificate) -> tuple[str, ...]:
    """Return how a repeated verification differs from a stored certificate, in sentences.

    Times and memory are not compared. Digits of logits may differ on another machine.
    """
    return tuple(_differences(stored, found))


def _differences(stored: Certificate, found: Certificate) -> Iterator[str]:
    if stored.artifact_sha256 != found.artifact_sha256:
        yield "the artifact has other files than the certificate states."
    if stored.run_sha256 != found.run_sha256:
        yield "the certificate is of an artifact of another run."
    if stored.rows_sha256 != found.rows_sha256:
        yield "the certificate was made on other examples."
    if stored.verdict != found.verdict:
        yield f"the certificate states: {headline(stored)}."
    name = stored.comparison.metric
    pairs = [
        (side.metrics[name].mean, other.metrics[name].mean)
        for side, other in zip(stored.comparison.arms, found.comparison.arms, strict=True)
        if name in side.metrics and name in other.metrics
    ]
    if any(abs(one - other) > SAME_METRIC for one, other in pairs):
        shown = " and ".join(f"{one:.4f}" for one, _ in pairs)
        title = stored.comparison.primary.title
        yield f"the certificate states another {title} of model and artifact: {shown}."
