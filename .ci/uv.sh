# Sourced by the scripts of this folder, in the checkout's folder. It installs uv, which installs what pip would but does not
# read pip's settings, so they are handed on as variables.
python=${PYTHON:-python3}
test -x .uv/bin/uv || { "$python" -m venv .uv && .uv/bin/python -m pip -qq --disable-pip-version-check install uv; }
of_pip() { .uv/bin/python -m pip config list | sed -n "s/^.*\.$1='\(.*\)'$/\1/p" | tail -n 1; }
export UV=$PWD/.uv/bin/uv UV_INDEX_STRATEGY=unsafe-best-match
for pair in index-url:UV_DEFAULT_INDEX extra-index-url:UV_INDEX find-links:UV_FIND_LINKS constraint:UV_CONSTRAINT cert:SSL_CERT_FILE; do
    setting=$(of_pip "${pair%%:*}")
    [ -z "$setting" ] || export "${pair#*:}=$setting"
done
