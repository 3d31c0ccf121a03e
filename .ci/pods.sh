#!/usr/bin/env bash
# Installs the Debian packages that examples/pods needs. It needs root and apt-get,
# unless the programs exist:
#
#   bash .ci/pods.sh
#   go run ./examples/pods
set -euo pipefail

say() {
	echo "pods.sh: $*" >&2
}

# The names are those that examples/pods looks for.
missing() {
	local name
	for name in ip ss setpriv curl nginx redis-server redis-cli tcpdump iptables-nft ip6tables-nft; do
		command -v "$name" >/dev/null || echo "$name"
	done
}

[[ -n $(missing) ]] || {
	say "all is there"
	exit
}
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
apt-get update
apt-get install -y --no-install-recommends \
	iproute2 util-linux iptables tcpdump curl nginx-light redis-server redis-tools
[[ -z $(missing) ]] || {
	say "there is still no" $(missing)
	exit 1
}
