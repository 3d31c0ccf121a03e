#!/usr/bin/env bash
# Installs nginx, haproxy and h11 for the tests of test/messages, which are skipped
# without them. It needs root and apt-get for nginx and haproxy, and Python with pip for
# h11, unless they exist. The last line of the output is the directory of a Python that
# has h11:
#
#   bash .ci/messages.sh
#   GOTOWER_TESTS=full go test -v ./test/messages/
#
# GOTOWER_MESSAGES names another directory than gotower-messages in the user's cache; the
# tests read it too.
set -euo pipefail

readonly h11_version="${H11_VERSION:-0.16.0}"
readonly dir="${GOTOWER_MESSAGES:-${XDG_CACHE_HOME:-$HOME/.cache}/gotower-messages}"

say() {
	echo "messages.sh: $*" >&2
}

missing() {
	local name
	for name in nginx haproxy python3; do
		command -v "$name" >/dev/null || echo "$name"
	done
	! command -v python3 >/dev/null || python3 -m ensurepip --version >/dev/null 2>&1 || echo python3-venv
}

if [[ -n $(missing) ]]; then
	if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		say "there is no" $(missing) "and nothing can be installed here"
		exit 1
	fi
	# Install the servers without starting them.
	readonly policy=/usr/sbin/policy-rc.d
	if [[ ! -e $policy ]]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
		trap 'rm -f "$policy"' EXIT
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get update >&2
	apt-get install -y --no-install-recommends nginx-light haproxy python3 python3-venv >&2
fi

# A second run uses the existing environment.
if [[ $("$dir/bin/python3" -c 'import h11; print(h11.__version__)' 2>/dev/null) != "$h11_version" ]]; then
	say "installing h11 $h11_version"
	python3 -m venv "$dir"
	"$dir/bin/python3" -m pip install --quiet --disable-pip-version-check "h11==$h11_version" >&2
fi
echo "$dir"
