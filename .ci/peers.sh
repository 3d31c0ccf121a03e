#!/usr/bin/env bash
# Builds Caddy and Traefik, and installs nginx, for the comparison of gateways:
#
#   bash .ci/peers.sh
#   go run ./examples/bench gateways
#
# It needs Go and about ten minutes on two cores. A second run uses the existing
# programs. The last line of the output is the directory of the programs.
# GOTOWER_PEERS names another directory than gotower-peers in the user's cache; the
# comparison reads it too. CADDY_VERSION and TRAEFIK_VERSION select other versions,
# which the installed Go must support.
set -euo pipefail

readonly caddy_version="${CADDY_VERSION:-v2.11.9}"
readonly traefik_version="${TRAEFIK_VERSION:-v3.7.13}"
readonly dir="${GOTOWER_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/gotower-peers}"
export GOTOOLCHAIN="${GOTOOLCHAIN:-local}"
export CGO_ENABLED=0 GOWORK=off
unset GOFLAGS

tmp="$(mktemp -d)"
readonly tmp
trap 'rm -rf "$tmp"' EXIT

say() {
	echo "peers.sh: $*" >&2
}

# new_module makes a module that requires another module.
new_module() {
	mkdir "$tmp/$1.module"
	cd "$tmp/$1.module"
	go mod init "build.invalid/$1"
	go mod edit -require "$2@$3"
}

build_caddy() {
	new_module caddy github.com/caddyserver/caddy/v2 "$caddy_version"
	go build -mod=mod -trimpath -ldflags "-s -w -X github.com/caddyserver/caddy/v2.CustomVersion=$caddy_version" \
		-o "$tmp/caddy" github.com/caddyserver/caddy/v2/cmd/caddy
}

# The module of Traefik does not build alone, because a dependency ignores its
# replacements. Two of them differ here:
#  - github.com/traefik/traefik/dynamic/ext is not in the published module. It has the
#    types of additional fields, and the program of the project has none.
#  - The clients of DNS providers are left out, because some of their modules cannot
#    be had. Traefik uses them only for certificates.
build_traefik() {
	local gomod lego
	new_module traefik github.com/traefik/traefik/v3 "$traefik_version"
	gomod="$(go mod download -json "github.com/traefik/traefik/v3@$traefik_version" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')"
	go mod edit -replace github.com/abbot/go-http-auth=github.com/containous/go-http-auth@v0.4.1-0.20200324110947-a37a7636d23e
	go mod edit -replace "github.com/gorilla/mux=$(sed -n 's|^\tgithub.com/gorilla/mux => \(.*\) \(.*\)|\1@\2|p' "$gomod")"
	sed -n 's/^exclude //p' "$gomod" | while read -r path version; do
		go mod edit -exclude "$path@$version"
	done
	mkdir ext
	printf 'module github.com/traefik/traefik/dynamic/ext\n\ngo 1.22\n' >ext/go.mod
	printf 'package ext\n\ntype (\n\tHTTP   struct{}\n\tRouter struct{}\n)\n' >ext/ext.go
	go mod edit -replace github.com/traefik/traefik/dynamic/ext=./ext
	lego="$(sed -n 's|^\t\(github.com/go-acme/lego/v[0-9]*\) \(v[^ ]*\).*|\1@\2|p' "$gomod")"
	cp -r "$(go mod download -json "$lego" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')" lego
	chmod -R u+w lego
	rm lego/providers/dns/*.go
	cat >lego/providers/dns/none.go <<-EOF
		package dns

		import (
			"errors"

			"${lego%@*}/challenge"
		)

		func NewDNSChallengeProviderByName(string) (challenge.Provider, error) {
			return nil, errors.New("this program is built without DNS providers")
		}
	EOF
	go mod edit -replace "${lego%@*}=./lego"
	go build -mod=mod -trimpath -ldflags "-s -w -X github.com/traefik/traefik/v3/pkg/version.Version=${traefik_version#v}" \
		-o "$tmp/traefik" github.com/traefik/traefik/v3/cmd/traefik
}

# provide builds a program unless it exists. It runs in a subshell, so that its
# first failing command ends it.
provide() {
	local program="$1" version="$2"
	if [[ -x $dir/$program && -f $dir/$program.version && $(<"$dir/$program.version") == "$version" ]]; then
		say "$program $version is there"
		return
	fi
	say "building $program $version"
	SECONDS=0
	("build_$program")
	# Renamed at the end, so that no comparison finds an incomplete file.
	mkdir -p "$dir"
	mv "$tmp/$program" "$dir/.$program.new"
	mv "$dir/.$program.new" "$dir/$program"
	echo "$version" >"$dir/$program.version"
	say "$program $version: built in $SECONDS s"
}

if ! command -v nginx >/dev/null; then
	say "installing nginx"
	apt-get update >&2
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends nginx-light >&2
fi
provide caddy "$caddy_version"
provide traefik "$traefik_version"
echo "$dir"
