-- Tables of console.db. Photos, models, kits and door lists are plain files; what is here about them is an index that is
-- made again from the files, except consent, notes, visits, users and the trail of changes.

CREATE TABLE people (
    name TEXT PRIMARY KEY,               -- name of the folder in photos/
    folder_mtime_ns INTEGER NOT NULL,    -- when the folder was read; another value: read it again
    photos INTEGER NOT NULL,             -- number of photo files
    cover TEXT,                          -- file name of the photo that the grid shows
    problems INTEGER NOT NULL DEFAULT 0, -- photos that a training would leave out
    consent_date TEXT,                   -- ISO date, or NULL
    note TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE TABLE photos (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: a changed photo has a new id
    person TEXT NOT NULL,
    file TEXT NOT NULL,
    mtime_ns INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    version TEXT NOT NULL,    -- of the check
    problem TEXT,             -- why a training leaves the photo out, or NULL
    digest TEXT NOT NULL,     -- of the decoded photo; empty if it cannot be decoded
    facts TEXT NOT NULL,      -- JSON: size, faces, which one is meant, warnings
    vector BLOB,              -- float32, unit length: the network's vector for "looks like"; NULL if not computed
    likeness BLOB,            -- float32, unit length: coarse features for near-duplicates; NULL without a usable face
    crop BLOB,                -- JPEG: the face
    UNIQUE (person, file)
) STRICT;
CREATE INDEX photos_by_digest ON photos (digest);

CREATE TABLE kept_photos (    -- photos with a suspected wrong name that a person confirmed
    sha256 TEXT NOT NULL,
    person TEXT NOT NULL,
    PRIMARY KEY (sha256, person)
) STRICT;

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,             -- train, build, import
    who TEXT NOT NULL,
    options TEXT NOT NULL,          -- JSON
    state TEXT NOT NULL,            -- running, done, failed, cancelled
    started TEXT NOT NULL,          -- UTC
    ended TEXT,
    pid INTEGER NOT NULL,
    pid_started TEXT NOT NULL,      -- start of the process since boot, and the boot: a pid is used again
    stage TEXT NOT NULL DEFAULT '',
    done INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    seconds_left REAL,              -- of the whole job, estimated
    message TEXT NOT NULL DEFAULT '', -- the result, or the error and what to do, in sentences
    result TEXT NOT NULL DEFAULT '{}' -- JSON
) STRICT;

CREATE TABLE job_lines (
    job INTEGER NOT NULL,
    utc TEXT NOT NULL,
    line TEXT NOT NULL
) STRICT;
CREATE INDEX job_lines_by_job ON job_lines (job);

CREATE TABLE stage_seconds (    -- how long each stage of the last job of a kind took, for estimates
    kind TEXT NOT NULL,
    stage TEXT NOT NULL,
    seconds REAL NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (kind, stage)
) STRICT;

CREATE TABLE trail (
    id INTEGER PRIMARY KEY,
    utc TEXT NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,       -- such as "add photos", "delete person"
    subject TEXT NOT NULL,      -- what was changed
    details TEXT NOT NULL       -- a sentence, or empty
) STRICT;

CREATE TABLE users (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,         -- viewer, operator, administrator
    password TEXT NOT NULL,     -- argon2id, encoded
    created TEXT NOT NULL
) STRICT;

CREATE TABLE sessions (
    digest TEXT PRIMARY KEY,    -- SHA-256 of the cookie
    user TEXT NOT NULL,
    role TEXT NOT NULL,
    csrf TEXT NOT NULL,
    created REAL NOT NULL,      -- seconds since 1970
    used REAL NOT NULL
) STRICT;

CREATE TABLE visits (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again
    door TEXT NOT NULL,
    event_id TEXT NOT NULL,
    utc TEXT NOT NULL,          -- with milliseconds, as events have it
    outcome TEXT NOT NULL,      -- granted, denied, expired
    label TEXT,
    reason TEXT,
    confidence REAL,
    threshold REAL,
    kit TEXT,
    verdict TEXT,               -- what a second look at the picture found: NULL, 'stranger', or 'is NAME'
    verdict_file TEXT,          -- name of the file that the verdict made
    event TEXT NOT NULL,        -- the whole event, JSON
    picture BLOB,               -- sealed for the holder of the picture key, or NULL. Last: SQLite reads a row up to here
    UNIQUE (door, event_id)
) STRICT;
-- Each index has all columns of a search, so that a search reads rows only for the page that it shows.
CREATE INDEX visits_by_time ON visits (utc, id, label, door, outcome);
CREATE INDEX visits_by_label ON visits (label, utc, id, door, outcome);
CREATE INDEX visits_by_door ON visits (door, utc, id, label, outcome);
CREATE INDEX visits_by_outcome ON visits (outcome, utc, id, label, door);
CREATE INDEX visits_of_unknown ON visits (utc, id, door, outcome, reason) WHERE reason = 'unknown person';

CREATE TABLE settings (         -- of the site; such as how long visits are kept
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
