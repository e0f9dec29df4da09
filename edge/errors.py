"""The family of errors that a user may meet: one sentence, a next step, an exit code.

Everything that a person can cause (a missing file, a blank photo, a wrong option) is raised as one of these; the
command-line tools print the sentence and leave with the code. Anything else is a bug and keeps its traceback.

Exit codes: 0 well; 2 usage and bad input on the workstation; 130 Ctrl-C; and for a kit that is not to be used
20 no kit, or one that makes no sense    21 damaged              22 cut short       23 too large
24 another format version                25 unsafe graph         26 unsigned        27 signed with another key
28 signature cannot be checked here      29 graph and trainer disagree              30 precision costs too much
and at the door
31 no camera    32 nothing to find faces with    33 a door list that makes no sense    34 an address that cannot be served
35 a face that is enrolled under another name    36 too few usable photos to enrol
37 the doctor found something that will not work    38 settings that make no sense, or a secret that is not there
39 a sink that cannot work here    40 an audit log that cannot be opened or written    41 one that is damaged
42 one whose chain is broken, or whose end is missing    43 a service that cannot be installed
44 a kit that is not newer than the one in force    45 a kit of another series    46 a kit that fails its self-test
and on the workstation
47 a cluster that cannot be worked with
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_INTERRUPTED = 130


class EdgeError(Exception):
    """Base of the family. `message` says what is wrong, `hint` what to do about it."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(EdgeError):
    """An option or a combination of options that cannot work."""


class ParameterError(UsageError, ValueError):
    """A value outside the range in which it means something."""


class GalleryError(EdgeError):
    """Photos that cannot be trained on."""


class ModelError(EdgeError):
    """A model file that cannot be read, written or trusted."""


class TrainingError(EdgeError, ValueError):
    """Training that did not give a usable model (collapsed, diverged, one class...)."""


class KitError(EdgeError):
    """A file that is no kit, or whose contents make no sense."""

    exit_code = 20


class KitDamagedError(KitError):
    """A kit in which at least one byte differs from what was written."""

    exit_code = 21


class KitTruncatedError(KitError):
    """A kit whose end is missing."""

    exit_code = 22


class KitSizeError(KitError):
    """A kit that is too large, or that would become so when unpacked."""

    exit_code = 23


class KitVersionError(KitError):
    """A kit of another format version."""

    exit_code = 24


class KitUnsafeError(KitError):
    """A graph that asks for more than a recogniser needs: unlisted operators, subgraphs, data outside the file."""

    exit_code = 25


class KitUnsignedError(KitError):
    """No signature where one is required."""

    exit_code = 26


class KitSignatureError(KitError):
    """A signature that was not made with the required key."""

    exit_code = 27


class SignatureUnavailableError(KitError):
    """A signature is required, and the package that checks it is missing."""

    exit_code = 28


class KitOlderError(KitError):
    """A kit that is not newer than those that were in force here."""

    exit_code = 44


class KitForeignError(KitError):
    """A kit that was made for other doors."""

    exit_code = 45


class SelfTestError(KitError):
    """A kit that does not compute here what it computed where it was built."""

    exit_code = 46


class ParityError(EdgeError):
    """A graph that does not compute what the trainer's coder computes."""

    exit_code = 29


class PrecisionLossError(EdgeError):
    """Weights of fewer bits that cost more accuracy than was allowed."""

    exit_code = 30


class CameraError(EdgeError):
    """A camera, video or folder that gives no pictures."""

    exit_code = 31


class DetectorMissingError(EdgeError):
    """Nothing here finds faces: the kit has no detector, and OpenCV brings none."""

    exit_code = 32


class DoorListError(EdgeError):
    """A door list that cannot be read, or that says something impossible."""

    exit_code = 33


class ListenError(EdgeError):
    """An address that the preview cannot be served at."""

    exit_code = 34


class SettingsError(EdgeError):
    """Settings that cannot be read, or that say something impossible. `problems` are all that were found, a sentence each."""

    exit_code = 38

    def __init__(self, *problems: str) -> None:
        more = f"There are {len(problems) - 1} more problems: see `edge config check`." if len(problems) > 1 else ""
        super().__init__(problems[0], more or "See docs/reference/settings.md.")
        self.problems = problems


class SinkError(EdgeError):
    """A sink that cannot work here: a missing package, pin or certificate."""

    exit_code = 39


class AuditError(EdgeError):
    """An audit log that cannot be opened, read or written."""

    exit_code = 40


class AuditDamagedError(AuditError):
    """An audit log that SQLite cannot read any more."""

    exit_code = 41


class AuditChainError(AuditError):
    """An audit log in which an entry was changed, taken out or cut off."""

    exit_code = 42


class ServiceError(EdgeError):
    """A service that cannot be installed."""

    exit_code = 43


class UnfitError(EdgeError):
    """A device on which a door will not work, by the checks of `edge doctor`."""

    exit_code = 37


class AlreadyEnrolledError(EdgeError):
    """A face that is enrolled under another name."""

    exit_code = 35


class TooFewPhotosError(EdgeError):
    """Too few usable photos to enrol a person."""

    exit_code = 36


class ClusterError(EdgeError):
    """A Dask cluster that is not there, or that cannot compute what is asked."""

    exit_code = 47
