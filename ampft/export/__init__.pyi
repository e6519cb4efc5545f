"""The public names of ampft.export; each is imported from its home when it is first used."""

from .artifact import Artifact as Artifact
from .artifact import ArtifactManifest as ArtifactManifest
from .artifact import open_artifact as open_artifact
from .export import export_run as export_run
from .source import ExportRequest as ExportRequest
