"""All errors that a user can cause: one sentence, a next step, and an exit code.

The commands print the sentence and exit with the code. Any other exception is a bug and keeps its traceback.

Exit codes: 0 success; 2 usage or input; 20-28 and 44-46 kit; 29-30 export; 31-34 and 38-39 terminal; 35-36 enrolment;
37 doctor; 40-42 and 49 audit log; 43 service; 47 cluster; 50-51 fleet; 130 Ctrl-C.
"""

EXIT_INTERRUPTED = 130


class EdgeError(Exception):
    """Base class of all errors that a user can cause. `message` says what happened, `hint` what to do next.

    `exit_code` is the one that a command ends with.
    """

    exit_code = 2

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(EdgeError):
    """An option, or a combination of options, is invalid."""


class ParameterError(UsageError, ValueError):
    """A value is out of range."""


def require(holds: bool, problem: str) -> None:
    """Raise ParameterError unless the condition holds."""
    if not holds:
        raise ParameterError(problem)


class GalleryError(EdgeError):
    """The photos cannot be used for training."""


class ModelError(EdgeError):
    """A model file cannot be read, written or trusted."""


class TrainingError(EdgeError, ValueError):
    """Training gave no usable model: it collapsed, diverged, or had one class."""


class KitError(EdgeError, exit_code=20):
    """There is no kit, or its contents are invalid."""


class KitDamagedError(KitError, exit_code=21):
    """At least one byte of the kit was changed."""


class KitTruncatedError(KitError, exit_code=22):
    """The end of the kit is missing."""


class KitSizeError(KitError, exit_code=23):
    """The kit is too large, packed or unpacked."""


class KitVersionError(KitError, exit_code=24):
    """The kit has an unsupported format version."""


class KitUnsafeError(KitError, exit_code=25):
    """The graph uses operators, subgraphs or files that a recogniser does not need."""


class KitUnsignedError(KitError, exit_code=26):
    """A signature is required, and the kit has none."""


class KitSignatureError(KitError, exit_code=27):
    """The signature was not made with the required key."""


class SignatureUnavailableError(KitError, exit_code=28):
    """A signature is required, and the package that checks it is missing."""


class KitOlderError(KitError, exit_code=44):
    """The version of the kit is not above those that were active here, or is too far above them."""


class KitForeignError(KitError, exit_code=45):
    """The kit belongs to another series."""


class SelfTestError(KitError, exit_code=46):
    """The kit does not compute the results that it carries."""


class ParityError(EdgeError, exit_code=29):
    """The graph does not compute the results of the trainer."""


class PrecisionLossError(EdgeError, exit_code=30):
    """Weights with fewer bits cost more accuracy than allowed."""


class CameraError(EdgeError, exit_code=31):
    """A camera, video or folder gives no frames."""


class DetectorMissingError(EdgeError, exit_code=32):
    """There is no face detector, or it cannot be used."""


class DoorListError(EdgeError, exit_code=33):
    """The door list cannot be read or is invalid."""


class ListenError(EdgeError, exit_code=34):
    """An address cannot be served."""


class AlreadyEnrolledError(EdgeError, exit_code=35):
    """The face is enrolled under another name."""


class TooFewPhotosError(EdgeError, exit_code=36):
    """There are too few usable photos to enrol a person."""


class UnfitError(EdgeError, exit_code=37):
    """A check of `edge doctor` failed."""


class SettingsError(EdgeError, exit_code=38):
    """The settings or a secret cannot be read or are invalid. `problems` has one sentence for each problem."""

    def __init__(self, *problems: str) -> None:
        more = f"There are {len(problems) - 1} more problems: see `edge config check`." if len(problems) > 1 else ""
        super().__init__(problems[0], more or "See docs/reference/settings.md.")
        self.problems = problems


class SinkError(EdgeError, exit_code=39):
    """A sink cannot work: a package, pin or certificate is missing."""


class AuditError(EdgeError, exit_code=40):
    """The audit log cannot be opened, read or written."""


class AuditDamagedError(AuditError, exit_code=41):
    """SQLite cannot read the audit log."""


class AuditChainError(AuditError, exit_code=42):
    """An entry of the audit log was changed, removed or cut off, or its tables were changed."""


class HeadUnavailableError(AuditError, exit_code=49):
    """The MQTT broker did not return the head of an audit log."""


class ServiceError(EdgeError, exit_code=43):
    """The service cannot be installed."""


class ClusterError(EdgeError, exit_code=47):
    """The Dask cluster cannot be reached or used."""


class FleetError(EdgeError, exit_code=50):
    """The repository of a fleet is missing, damaged, or not signed as required."""


class DoorsError(EdgeError, exit_code=51):
    """Doors of a fleet need attention, or a rollout is stopped."""
