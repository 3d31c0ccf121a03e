#!/usr/bin/env bash
# Builds h2spec for TestH2Spec of examples/proxy/reliability, examples/proxy/sidecar
# and examples/gateway, which is skipped without it. It needs Go and half a minute. A
# second run uses the existing program. The last line of the output is the directory of
# the program:
#
#   bash .ci/h2spec.sh
#   GOTOWER_TESTS=full go test -run TestH2Spec -v ./examples/proxy/reliability/ ./examples/proxy/sidecar/ ./examples/gateway/
#
# GOTOWER_H2SPEC names another directory than gotower-h2spec in the user's cache;
# the test reads it too. The version is the newest one of the Go module proxy. The
# program reports 2.0.0.
set -euo pipefail

readonly version="${H2SPEC_VERSION:-v2.2.1+incompatible}"
readonly dir="${GOTOWER_H2SPEC:-${XDG_CACHE_HOME:-$HOME/.cache}/gotower-h2spec}"
export GOTOOLCHAIN="${GOTOOLCHAIN:-local}"
export CGO_ENABLED=0 GOWORK=off
unset GOFLAGS

say() {
	echo "h2spec.sh: $*" >&2
}

if [[ -x $dir/h2spec && -f $dir/h2spec.version && $(<"$dir/h2spec.version") == "$version" ]]; then
	say "h2spec $version is there"
	echo "$dir"
	exit
fi

tmp="$(mktemp -d)"
readonly tmp
trap 'rm -rf "$tmp"' EXIT

say "building h2spec $version"
SECONDS=0
cd "$tmp"
go mod init build.invalid/h2spec
# The program has no go.mod file, so its dependencies are pinned here.
go mod edit \
	-require "github.com/summerwind/h2spec@$version" \
	-require github.com/fatih/color@v1.19.0 \
	-require github.com/spf13/cobra@v1.10.2 \
	-require golang.org/x/net@v0.62.0
go build -mod=mod -trimpath -ldflags '-s -w' -o "$tmp/h2spec" github.com/summerwind/h2spec/cmd/h2spec

# Renamed at the end, so that no test finds an incomplete file.
mkdir -p "$dir"
mv "$tmp/h2spec" "$dir/.h2spec.new"
mv "$dir/.h2spec.new" "$dir/h2spec"
echo "$version" >"$dir/h2spec.version"
say "h2spec $version: built in $SECONDS s"
echo "$dir"
