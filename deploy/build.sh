#!/bin/sh
# Makes an image of agentgym without a registry, and without a network inside the build: pip, as it is set up on this
# host, gathers wheels; deploy/Dockerfile installs them on a base of Debian's packages, as apt is set up on this host.
#
#     deploy/build.sh IMAGE EXTRAS [REQUIREMENT...]
#
#     deploy/build.sh agentgym:1 train,serve,search
#     BASE=agentgym-python-cc:1 deploy/build.sh agentgym-vllm:1 train vllm
#
# PYTHON            the Python whose pip gathers them, of the same version as the image's    .venv/bin/python
# BASE              the image they are installed on: any with Python and venv, as one of a
#                   registry; agentgym-python:1 and agentgym-python-cc:1, which has a C
#                   compiler, are made if they are not there                                 agentgym-python:1
# WITHOUT           names of wheels that are gathered and not installed
# PIP_CONSTRAINT    pip's own: a file of versions
set -eu
cd "$(dirname "$0")/.."
image=$1 extras=$2
shift 2
python=${PYTHON:-.venv/bin/python}
base=${BASE:-agentgym-python:1}
context=build/images/${image%%:*}

if ! docker image inspect "$base" >/dev/null 2>&1; then
    case $base in
        agentgym-python:1) deploy/base.sh "$base" ;;
        agentgym-python-cc:1) deploy/base.sh "$base" gcc,g++,libc6-dev,python3-dev ;;
    esac
fi
version='import sys; print(".".join(map(str, sys.version_info[:2])))'
here=$("$python" -c "$version")
there=$(docker run --rm --network none "$base" python3 -c "$version")
if [ "$here" != "$there" ]; then
    echo "$python is Python $here and $base has $there: wheels for the one do not fit the other; set PYTHON or BASE" >&2
    exit 1
fi

echo "gathering wheels for $image in $context"
rm -rf "$context"
mkdir -p "$context/source" "$context/own" "$context/others"
# a copy, since setuptools would put what earlier builds left in build/ into the wheel
cp -a pyproject.toml README.md agentgym_start.py agentgym_verifiers.py agentgym envs tools trainers sandboxes "$context/source"
pip() { "$python" -m pip -q --disable-pip-version-check "$@"; }
pip wheel --no-deps --no-build-isolation --wheel-dir "$context/own" "$context/source"
rm -rf "$context/source"
own=$(echo "$context"/own/*.whl)
pip wheel --wheel-dir "$context/others" "$own[$extras]" "$@"
for name in agentgym_turns ${WITHOUT:-}; do rm -f "$context/others/$name"-*.whl; done

echo "building $image"
docker build --quiet --network none --build-arg "BASE=$base" --tag "$image" --file deploy/Dockerfile "$context"
