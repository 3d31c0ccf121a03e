#!/usr/bin/env bash
# Runs the conformance tests of the Gateway API against examples/gateway, and writes the
# report examples/gateway/CONFORMANCE.md:
#
#   bash .ci/conformance.sh
#   bash .ci/conformance.sh -only HTTPRouteMatching    one test, without a report
#
# It needs Go, root on Linux, and about two minutes. .ci/kube.sh builds the API server. The
# tests run in a network namespace of their own, because they use the ports 80 and 443.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../tools/conformance"

bash ../../.ci/kube.sh >/dev/null
tmp="$(mktemp -d)"
readonly tmp
trap 'rm -rf "$tmp"' EXIT
go test -c -o "$tmp/conformance.test" .
go build -o "$tmp/echo" sigs.k8s.io/gateway-api/conformance/echo-basic # so that its modules are there
args=("$@")
(($#)) || args=(-report "$PWD/../../examples/gateway/CONFORMANCE.md")
GOTOWER_TESTS=full unshare --net bash -c '
	ip link set lo up
	ip address add 198.18.0.1/16 dev lo
	exec "$0" -test.v -test.timeout 30m "$@"
' "$tmp/conformance.test" "${args[@]}"
