"""The reasons of decisions, as events report them."""

RECOGNISED = "recognised"
UNKNOWN_PERSON = "unknown person"
STALE_FRAME = "stale frame"
INVALID_SCORES = "invalid scores"
VISIT_TOO_SHORT = "visit too short"
LOW_QUALITY = "low image quality"  # ": " and one of edge.vision.quality.REASONS follow

# Door list
NOT_LISTED = "not on the door list"
OUTSIDE_HOURS = "outside allowed hours"
NOT_YET_VALID = "not yet valid"
EXPIRED = "expired"
HOLIDAY = "holiday"
NO_ENTRIES_LEFT = "no entries left"
CLOCK_NOT_SET = "clock not set"
DOOR_LIST_FAILED = "door list failed"

# Fleet
REVOKED = "revoked"
KIT_REVOKED = "kit revoked"
FLEET_TOO_OLD = "fleet data too old"

# Liveness
PRESENTATION_ATTACK = "presentation attack suspected"
CHALLENGE_FAILED = "challenge failed"  # ": " and one of the following reasons follow
TIMEOUT, WRONG_MOVEMENT, FACE_LOST = "timeout", "wrong movement", "face lost"
NOT_ALONE, ANOTHER_PERSON = "not alone", "another person"
