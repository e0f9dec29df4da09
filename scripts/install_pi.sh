#!/usr/bin/env bash
# Install a door terminal as a service on a new 64-bit Raspberry Pi OS, from the checkout that contains this script.
#   sudo ./scripts/install_pi.sh [options] KIT
# Run it again to install a new kit or a new version. It never overwrites the settings.
set -euo pipefail

usage() {
    cat <<'END'
usage: install_pi.sh [options] KIT
  KIT                 the file that `edge-export build` wrote
  --camera SOURCE     picamera2:0 (default), 0, /dev/video0, or an address without a password
  --package PACKAGE   a wheel, or a requirement for pip (default: the checkout that contains this script)
  --public-key FILE   accept only kits that are signed with this key
  --dry-run           print the commands and change nothing
END
}

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $1"; exit "${2:-1}"; }

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
camera=picamera2:0 package=$checkout public_key="" dry_run="" kit=""
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
[[ $package != "$checkout" || -r $checkout/pyproject.toml ]] || fail "this script is not in a checkout: name a wheel with --package." 2
[[ $camera != *://*@* ]] || fail "an address with a password belongs in a file: set [camera] source_file in the settings." 2
[[ $camera != *[\"\\]* ]] || fail "the camera $camera is not valid: a name has no quotes or backslashes." 2

readonly home=/opt/lclrr-edge etc=/etc/lclrr-edge user=edge service=lclrr-edge

run() { # run a command, or print it in a dry run
    if [[ $dry_run ]]; then
        printf '%q ' "$@"
        printf '\n'
    else
        "$@"
    fi
}

write() { # write stdin to a file that does not exist yet
    if [[ $dry_run ]]; then
        printf 'write %s:\n' "$1"
        sed 's/^/    /'
    elif [[ -e $1 ]]; then
        say "$1 exists and is not changed."
    else
        install -m 0640 -o root -g "$user" /dev/stdin "$1"
    fi
}

if [[ ! $dry_run ]]; then
    [[ $(uname -m) == aarch64 ]] || fail "a 64-bit Raspberry Pi OS is needed, and this is $(uname -m). Choose it in the Raspberry Pi Imager."
    type -P apt-get systemctl >/dev/null || fail "a system with apt and systemd is needed."
    ((EUID == 0)) || fail "root rights are needed: run it with sudo."
fi

# picamera2 and libcamera are packages of the system, not of pip: the venv needs --system-site-packages.
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
clean() { [[ $package != "$checkout" ]] || run rm -rf "$checkout/build" "$checkout/lclrr_edge.egg-info"; }
clean # pip would also install old modules that it finds there
run "$home/bin/pip" install --quiet --upgrade --disable-pip-version-check "$wanted"
clean # these files belong to root, and a later build could not replace them

# The kit contains biometric data: only root and the service can read it, and only root can change it.
run install -d -m 0750 -o root -g "$user" "$etc"
run install -o root -g "$user" -m 0640 "$kit" "$etc/door.kit"
[[ ! $public_key ]] || run install -o root -g "$user" -m 0644 "$public_key" "$etc/door.pem"
signed=${public_key:+'public_key = "door.pem"'}
write "$etc/settings.toml" <<END
# \`edge config template\` lists all settings. Run \`edge config check\` after a change.
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
# Existing settings may be older than the key. They would accept an unsigned kit.
if [[ $public_key && ! $dry_run ]] && ! "$home/bin/edge" config show "$etc/settings.toml" | grep '^public_key = ' >/dev/null; then
    fail "$etc/settings.toml is older and requires no signature: add public_key = \"door.pem\" to its [kit]."
fi
# A failed check does not stop the installation: the camera may be connected later.
run "$home/bin/edge" doctor "$etc/door.kit" --camera "$camera" ${public_key:+--public-key "$etc/door.pem"} ||
    say "warning: a check of edge doctor failed; see above."
run "$home/bin/edge" install-service --settings "$etc/settings.toml" --user "$user"
run systemctl daemon-reload
run systemctl enable "$service"
run systemctl restart "$service"
run systemctl --no-pager status "$service"
