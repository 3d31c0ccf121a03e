#!/usr/bin/env bash
# Builds kube-apiserver and etcd for the tests TestRealAPIServer of resolve/k8s,
# examples/gateway and others, which are skipped without them. It needs Go and about five
# minutes on two cores. A second run uses the existing programs. The last line of
# the output is the directory of the programs:
#
#   bash .ci/kube.sh        # or with the argument etcd, for that program only
#   GOTOWER_TESTS=full go test -run TestRealAPIServer -v ./resolve/k8s/ ./examples/gateway/
#
# GOTOWER_KUBE names another directory than gotower-kube in the user's cache;
# the test reads it too. KUBE_VERSION and ETCD_VERSION select other versions, which
# the installed Go must support.
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

# present reports whether a program of a version exists.
present() {
	[[ -x $dir/$1 && -f $dir/$1.version && $(<"$dir/$1.version") == "$2" ]]
}

# keep renames a program at the end, so that no test finds an incomplete file.
keep() {
	mkdir -p "$dir"
	mv "$tmp/$1" "$dir/.$1.new"
	mv "$dir/.$1.new" "$dir/$1"
	echo "$2" >"$dir/$1.version"
}

# new_module makes a module that requires another module.
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

# The module of Kubernetes replaces its libraries by directories that the published
# module does not have. The libraries are published as modules with v0 for v1.
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

# provide builds a program unless it exists. It runs in a subshell, so that its
# first failing command ends it.
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
[[ ${1:-} == etcd ]] || provide kube-apiserver "$kube_version"
echo "$dir"
