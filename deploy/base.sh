#!/bin/sh
# Makes an image of Debian bookworm with Python 3.11 and venv without a registry, as `agentgym sandbox build` makes the
# sandboxes' image: from Debian's packages, as apt is set up on this host.
#
#     deploy/base.sh [IMAGE [PACKAGE,...]]
set -eu
image=${1:-agentgym-python:1}
more=${2:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
PATH="$PATH:/usr/sbin:/sbin" mmdebstrap --quiet --variant=minbase \
    --include="python3,python3-venv,python-is-python3,ca-certificates,git,bubblewrap,libgomp1${more:+,$more}" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$folder/root.tar"
docker import --change 'CMD ["python3"]' "$folder/root.tar" "$image"
