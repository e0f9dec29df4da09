#!/usr/bin/env bash
# From a bare 64-bit Raspberry Pi OS to a door terminal that runs as a service.
#   sudo ./install_pi.sh [options] KIT
# Run it again to bring in a new kit or a new version: what is there is kept, settings are never overwritten.
set -euo pipefail

usage() {
    cat <<'END'
usage: install_pi.sh [options] KIT
  KIT                 what `edge-export build` made
  --camera SOURCE     picamera2:0 (default), 0, /dev/video0, or an address without a password
  --package WHAT      what pip installs: a version on PyPI or a wheel (default: lclrr-edge)
  --public-key FILE   accept only kits that are signed with this key
  --dry-run           print the commands, and change nothing
END
}

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $1"; exit "${2:-1}"; }

camera=picamera2:0 package=lclrr-edge public_key="" dry_run="" kit=""
while (($#)); do
    case $1 in
        --camera | --package | --public-key)
            (($# > 1)) || fail "$1 needs a value." 2
            case $1 in --camera) camera=$2 ;; --package) package=$2 ;; *) public_key=$2 ;; esac
            shift
            ;;
        --dry-run) dry_run=1 ;;
        -h | --help) usage; exit ;;
        -*) usage >&2; fail "$1 is not an option." 2 ;;
        *) [[ ! $kit ]] || { usage >&2; exit 2; }; kit=$1 ;;
    esac
    shift
done
[[ $kit ]] || { usage >&2; exit 2; }
for file in "$kit" ${public_key:+"$public_key"}; do
    [[ -r $file ]] || fail "$file cannot be read." 2
done
[[ $camera != *://*@* ]] || fail "put an address with a password into a file: [camera] source_file in the settings." 2
[[ $camera != *[\"\\]* ]] || fail "the camera $camera makes no sense." 2

readonly home=/opt/lclrr-edge etc=/etc/lclrr-edge user=edge service=lclrr-edge

run() { # a command; in a dry run, its words
    if [[ $dry_run ]]; then
        printf '%q ' "$@"
        printf '\n'
    else
        "$@"
    fi
}

write() { # a file that is not there yet, from stdin
    if [[ $dry_run ]]; then
        printf 'write %s:\n' "$1"
        sed 's/^/    /'
    elif [[ -e $1 ]]; then
        say "$1 is kept as it is."
    else
        install -m 0640 -o root -g "$user" /dev/stdin "$1"
    fi
}

if [[ ! $dry_run ]]; then
    [[ $(uname -m) == aarch64 ]] || fail "this needs a 64-bit Raspberry Pi OS; here is $(uname -m). Choose it in the Raspberry Pi Imager."
    type -P apt-get systemctl >/dev/null || fail "this needs a system with apt and systemd."
    ((EUID == 0)) || fail "run it with sudo."
fi

# picamera2 and libcamera come with the system, and pip has no substitute: the venv looks there, too.
packages=(python3-venv)
[[ $camera != picamera2* ]] || packages+=(python3-picamera2)
run apt-get update -qq
run env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${packages[@]}"

id "$user" >/dev/null 2>&1 || run useradd --system --no-create-home --home-dir /var/lib/lclrr-edge --shell /usr/sbin/nologin "$user"
for group in video render gpio; do
    if getent group "$group" >/dev/null; then run usermod --append --groups "$group" "$user"; fi
done

[[ -x $home/bin/python ]] || run python3 -m venv --system-site-packages "$home"
extras="metrics,mqtt,gpio${public_key:+,signed}"
case $package in
    */* | *.whl) wanted="${package}[$extras]" ;;
    *) name=${package%%[=<>~!]*} && wanted="${name}[$extras]${package#"$name"}" ;;
esac
run "$home/bin/pip" install --quiet --upgrade --disable-pip-version-check "$wanted"

# The kit describes faces: nobody reads it but root and the service, and the service cannot change it.
run install -d -m 0750 -o root -g "$user" "$etc"
run install -o root -g "$user" -m 0640 "$kit" "$etc/door.kit"
[[ ! $public_key ]] || run install -o root -g "$user" -m 0644 "$public_key" "$etc/door.pem"
signed=${public_key:+'public_key = "door.pem"'}
write "$etc/settings.toml" <<END
# See \`edge config template\` for all that can be set, and \`edge config check\` after a change.
[kit]
path = "door.kit"
$signed

[camera]
source = "$camera"
wait = true

[metrics]
address = "127.0.0.1:9109"

[audit]
path = "/var/lib/lclrr-edge/audit.db"
END

run "$home/bin/edge" config check "$etc/settings.toml"
# Settings that are kept may be from before there was a key: then any kit would be taken, whoever made it.
if [[ $public_key && ! $dry_run ]] && ! "$home/bin/edge" config show "$etc/settings.toml" | grep '^public_key = ' >/dev/null; then
    fail "$etc/settings.toml was there before and requires no signature: add public_key = \"door.pem\" to its [kit]."
fi
# What the doctor finds is for people to read: a camera that is not plugged in yet does not stop the rest.
run "$home/bin/edge" doctor "$etc/door.kit" --camera "$camera" ${public_key:+--public-key "$etc/door.pem"} ||
    say "warning: the doctor is not content; see above."
run "$home/bin/edge" install-service --settings "$etc/settings.toml" --user "$user"
run systemctl daemon-reload
run systemctl enable "$service"
run systemctl restart "$service"
run systemctl --no-pager status "$service"
