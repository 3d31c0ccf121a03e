#!/usr/bin/env bash
# Builds the conformance tests of Connect for TestConnectConformance of
# examples/proxy/sidecar, which is skipped without them. It needs Go and a minute. The
# last line of the output is the directory of the programs:
#
#   bash .ci/connect.sh
#   GOTOWER_TESTS=full go test -run TestConnectConformance -v ./examples/proxy/sidecar/
#
# GOTOWER_CONNECT names another directory than gotower-connect in the user's cache; the
# test reads it too.
set -euo pipefail

readonly version="${CONNECT_VERSION:-v1.0.7}"
readonly dir="${GOTOWER_CONNECT:-${XDG_CACHE_HOME:-$HOME/.cache}/gotower-connect}"
export GOTOOLCHAIN="${GOTOOLCHAIN:-local}"
export CGO_ENABLED=0 GOWORK=off
unset GOFLAGS

# go install builds nothing if the programs have this version.
mkdir -p "$dir"
for name in connectconformance referenceclient referenceserver; do
	GOBIN="$dir" go install -trimpath -ldflags '-s -w' "connectrpc.com/conformance/cmd/$name@$version" >&2
done
echo "$dir"
