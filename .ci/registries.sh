#!/usr/bin/env bash
# Installs etcd and ZooKeeper for the tests of test/kit, which are skipped without them. etcd is built by .ci/kube.sh, and
# ZooKeeper is the package of the system. It needs Go, and root on Debian for a program that is missing.
#
#   bash .ci/registries.sh
#   GOTOWER_TESTS=full go -C test/kit test ./...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

bash kube.sh etcd

packages=()
command -v java >/dev/null || packages+=(default-jre-headless)
[[ -e /usr/share/java/zookeeper.jar ]] || packages+=(libzookeeper-java)
if ((${#packages[@]})); then
	if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		echo "registries.sh: cannot install ${packages[*]} here" >&2
		exit 1
	fi
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
fi
