#!/usr/bin/env bash
# Builds kube-apiserver and etcd for the test TestRealAPIServer of resolve/k8s,
# which is skipped without them. Needs Go and about five minutes of two cores;
# run again, it finds what is there. The last line it prints is the directory it
# leaves them in:
#
#   bash .ci/kube.sh
#   go test -run TestRealAPIServer -v ./resolve/k8s/
#
# GOTOWER_KUBE names another directory than gotower-kube in the user's cache;
# the test reads it too. KUBE_VERSION and ETCD_VERSION build other versions, of
# which the first must be one that the Go at hand is new enough for.
set -euo pipefail

readonly kube_version="${KUBE_VERSION:-v1.36.3}"
readonly etcd_version="${ETCD_VERSION:-v3.6.8}" # what that version of Kubernetes is tested with
readonly dir="${GOTOWER_KUBE:-${XDG_CACHE_HOME:-$HOME/.cache}/gotower-kube}"
export GOTOOLCHAIN="${GOTOOLCHAIN:-local}"
export CGO_ENABLED=0 GOWORK=off
unset GOFLAGS

tmp="$(mktemp -d)"
readonly tmp
trap 'rm -rf "$tmp"' EXIT

say() {
	echo "kube.sh: $*" >&2
}

# present says whether a program of a version is there already.
present() {
	[[ -x $dir/$1 && -f $dir/$1.version && $(<"$dir/$1.version") == "$2" ]]
}

# keep moves a program into place whole, so that no test finds half of one.
keep() {
	mkdir -p "$dir"
	mv "$tmp/$1" "$dir/.$1.new"
	mv "$dir/.$1.new" "$dir/$1"
	echo "$2" >"$dir/$1.version"
}

# new_module makes a module of its own that requires one other.
new_module() {
	mkdir "$tmp/$1.module"
	cd "$tmp/$1.module"
	go mod init "build.invalid/$1"
	go mod edit -require "$2@$3"
}

build_etcd() {
	new_module etcd go.etcd.io/etcd/server/v3 "$etcd_version"
	go build -mod=mod -trimpath -ldflags '-s -w' -o "$tmp/etcd" go.etcd.io/etcd/server/v3
}

# Kubernetes keeps its libraries in one tree with its programs and replaces them
# by folders, which its published module does not have: they are published as
# modules of their own, with v0 for v1.
build_kube_apiserver() {
	local gomod library
	new_module kube-apiserver k8s.io/kubernetes "$kube_version"
	gomod="$(go mod download -json "k8s.io/kubernetes@$kube_version" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')"
	while read -r library; do
		go mod edit -replace "$library=$library@v0.${kube_version#v1.}"
	done < <(sed -n 's|^\t\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$gomod")
	go build -mod=mod -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$kube_version" \
		-o "$tmp/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
}

# provide builds a program unless it is there. In a subshell of its own, so that
# its first failing command ends it.
provide() {
	local program="$1" version="$2"
	if present "$program" "$version"; then
		say "$program $version is there"
		return
	fi
	say "building $program $version"
	SECONDS=0
	("build_${program//-/_}")
	keep "$program" "$version"
	say "$program $version: built in $SECONDS s"
}

provide etcd "$etcd_version"
provide kube-apiserver "$kube_version"
echo "$dir"
