#!/usr/bin/env bash
# Installs the Debian packages named as arguments where they are missing: as root with apt-get, else by saying how.
set -euo pipefail

installed() { dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

missing=()
for package in "$@"; do
  installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "No apt-get here. Install what Debian calls ${missing[*]}, then run make with PACKAGES= NODE_PACKAGES=" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  as=; how="As root, run:"
  if command -v sudo >/dev/null; then as="sudo "; how="Run:"; fi
  echo "Missing system packages. $how ${as}apt-get update && ${as}apt-get install --yes --no-install-recommends" \
    "${missing[*]}" >&2
  exit 1
fi
echo "Installing system packages: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
# A machine that has just started may hold apt's lock for its own updates.
wait=DPkg::Lock::Timeout=300
apt-get update -qq -o $wait >&2
apt-get install --yes -qq -o $wait --no-install-recommends "${missing[@]}" >/dev/null
