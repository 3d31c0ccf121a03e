#!/usr/bin/env bash
# Installs the Debian package of Chromium for the browser tests of tap/view, which
# are skipped without it. It needs root and apt-get, unless Chromium exists:
#
#   bash .ci/view.sh
#   go test -run TestBrowser -v ./tap/view/
#
# Pictures of the page, at three widths, light and dark:
#
#   GOTOWER_SCREENSHOTS=/tmp/view go test -count=1 -run TestScreenshots ./tap/view/
set -euo pipefail

say() {
	echo "view.sh: $*" >&2
}

# The test uses the same names.
for name in chromium chromium-browser google-chrome headless-shell; do
	if command -v "$name" >/dev/null; then
		say "$name is there"
		exit
	fi
done
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
	say "no Chromium, and none can be installed here"
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends chromium fonts-dejavu-core
command -v chromium >/dev/null
